"""The replay memory: what goes in comes out, in whole segments, exactly once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import INITIAL, ReplayShape
from mlxe_async.rows import Column, RowLayout

COLUMNS = RowLayout(
    (
        Column("value", "<f4"),
        Column("terminated", "|u1"),
        Column("truncated", "|u1"),
        Column("cut", "|u1"),
        Column("env", "<i4"),
        Column("episode", "<i8"),
        Column("step", "<i4"),
    )
)
DERIVED = RowLayout((Column("to_end", "<f4"),))


def derive(segment):
    length = len(segment["value"])
    return {"to_end": np.arange(length, 0, -1, dtype=np.float32)}


def make(lanes=1, envs=1, stream_rows=16, keep_rows=8, block_rows=6, batch_rows=4, **more):
    shape = ReplayShape(
        lanes, envs, stream_rows, keep_rows, block_rows, batch_rows, 8, COLUMNS.to_json(), DERIVED.to_json(), **more
    )
    buffer = bytearray(shape.nbytes)
    return ReplayMemory(shape, buffer), buffer


def block(rows):
    """Rows as (env, episode, step, end) -> columns; the value encodes all of them."""
    columns = COLUMNS.empty(len(rows))
    for i, (env, episode, step, end) in enumerate(rows):
        columns["value"][i] = env * 10_000 + episode * 100 + step
        columns["terminated"][i] = end == "terminated"
        columns["truncated"][i] = end == "truncated"
        columns["cut"][i] = end == "cut"
        columns["env"][i], columns["episode"][i], columns["step"][i] = env, episode, step
    return columns


def values(memory):
    live = memory.live()
    order = np.argsort(memory._ring["stamp"][live])
    return memory._ring["value"][live][order].tolist()


def episode(number, length, env=0, end="terminated"):
    return [(env, number, step, end if step == length - 1 else "") for step in range(length)]


def test_rows_can_be_drawn_only_once_their_segment_is_closed():
    memory, _ = make()
    memory.ingest(0, 0, 1, block(episode(0, 5)[:3]), derive, drop_open=False)
    assert len(memory) == 0
    memory.ingest(0, 1, 1, block(episode(0, 5)[3:]), derive, drop_open=False)
    assert values(memory) == [0, 1, 2, 3, 4]
    assert memory.segments == 1


def test_the_derived_columns_are_those_of_the_whole_segment():
    memory, _ = make()
    memory.ingest(0, 0, 1, block(episode(0, 3)), derive, drop_open=False)
    assert [memory.row(i)["to_end"].item() for i in memory.live()] == [3, 2, 1]
    assert [memory.row(i)["left"].item() for i in memory.live()] == [3, 2, 1]


def test_of_a_long_episode_the_last_rows_are_kept():
    memory, _ = make(keep_rows=4)
    rows = episode(0, 30)
    for number in range(5):
        memory.ingest(0, number, 1, block(rows[number * 6 : number * 6 + 6]), derive, drop_open=False)
    assert values(memory) == [26, 27, 28, 29]


def test_the_oldest_rows_give_way():
    memory, _ = make(stream_rows=6)
    for number in range(4):
        memory.ingest(0, number, 1, block(episode(number, 3)), derive, drop_open=False)
    assert values(memory) == [200, 201, 202, 300, 301, 302]


def test_a_block_is_taken_in_once():
    memory, _ = make()
    memory.ingest(0, 0, 1, block(episode(0, 3)), derive, drop_open=False)
    assert memory.ingest(0, 0, 1, block(episode(0, 3)), derive, drop_open=False).rows == 0
    assert memory.ledger() == [{"position": 1, "rows": 3, "dropped": 0, "corrupt": 0}]


def test_what_a_dead_executor_left_open_is_closed_where_its_successor_goes_on_elsewhere():
    memory, _ = make()
    memory.ingest(0, 0, 1, block(episode(0, 5)[:3]), derive, drop_open=False)
    memory.ingest(0, 1, 2, block(episode(0, 2)), derive, drop_open=False)
    assert values(memory) == [0, 1, 2, 0, 1]
    assert memory.segments == 2


def test_what_a_dead_executor_left_open_is_dropped_where_its_successor_repeats_it():
    memory, _ = make()
    memory.ingest(0, 0, 1, block(episode(0, 5)[:3]), derive, drop_open=True)
    memory.ingest(0, 1, 2, block(episode(0, 5)), derive, drop_open=True)
    assert values(memory) == [0, 1, 2, 3, 4]
    assert memory.ledger()[0]["dropped"] == 3


def test_rows_that_do_not_follow_on_begin_a_new_segment():
    memory, _ = make()
    rows = [*episode(0, 5)[:2], *episode(1, 2)]
    memory.ingest(0, 0, 1, block(rows), derive, drop_open=False)
    assert values(memory) == [0, 1, 100, 101]
    assert memory.segments == 2
    assert [memory.row(i)["left"].item() for i in memory.live()] == [2, 1, 2, 1]


def test_a_cut_closes_a_segment_inside_an_episode():
    memory, _ = make()
    memory.ingest(0, 0, 1, block(episode(0, 2, end="cut")), derive, drop_open=False)
    assert values(memory) == [0, 1]


def test_environments_side_by_side_do_not_mix():
    memory, _ = make(envs=2)
    a, b = episode(0, 3, env=0), episode(0, 3, env=1)
    rows = [row for pair in zip(a, b, strict=True) for row in pair]
    memory.ingest(0, 0, 1, block(rows), derive, drop_open=False)
    live = memory.live()
    assert memory._ring["value"][live].tolist() == [0, 1, 2, 10_000, 10_001, 10_002]


def test_a_window_never_leaves_its_segment():
    memory, _ = make(batch_rows=6)
    memory.ingest(0, 0, 1, block([*episode(0, 3), *episode(1, 3)]), derive, drop_open=False)
    plan = memory.draw(0, 1, 6)
    batch, _ = memory.gather(plan, 0, window=3)
    assert batch["value"].shape == (3, 6)
    for column in range(6):
        first = batch["value"][0, column]
        for ahead in range(1, 3):
            expected = min(first + ahead, first // 100 * 100 + 2)
            assert batch["value"][ahead, column] == expected
            assert batch["valid"][ahead, column] == (expected == first + ahead)


def test_rows_overwritten_after_the_draw_are_left_out_and_get_no_priority():
    memory, _ = make(stream_rows=6)
    for number in range(2):
        memory.ingest(0, number, 1, block(episode(number, 3)), derive, drop_open=False)
    plan = memory.draw(1, 1, 4)
    memory.ingest(0, 2, 1, block(episode(2, 3)), derive, drop_open=False)
    batch, positions = memory.gather(plan, 0)
    assert len(positions) < 4
    assert (batch["value"] >= 100).all()
    assert len(batch["value"]) == len(batch["weight"]) == len(positions)
    memory.note_priorities(plan, 0, np.arange(4), np.full(4, 7.0))
    assert memory.settle(plan) == 4 - len(positions)
    live = memory.live()
    changed = memory._ring["value"][live][memory._ring["priority"][live] == 7.0]
    assert sorted(changed) == sorted(batch["value"])


def test_priorities_decide_how_often_a_row_is_drawn_and_weights_undo_it():
    memory, _ = make(stream_rows=8, batch_rows=1)
    memory.ingest(0, 0, 1, block(episode(0, 4)), derive, drop_open=False)
    first = memory.draw(0, 1, 1)
    memory.note_priorities(first, 0, np.arange(1), np.array([1.0]))
    memory.settle(first)
    memory._ring["priority"][memory.live()] = [1, 1, 1, 5]
    counts, weights = np.zeros(4), {}
    for seed in range(400):
        plan = memory.draw(seed, 8, 1, exponent=1.0, beta=1.0)
        for k in range(8):
            batch, _ = memory.gather(plan, k)
            counts[int(batch["value"][0])] += 1
            weights[int(batch["value"][0])] = float(batch["weight"][0])
    assert counts / counts.sum() == pytest.approx([1 / 8, 1 / 8, 1 / 8, 5 / 8], abs=0.03)
    assert set(weights.values()) == {1.0}


def test_priorities_that_cannot_be_any_are_replaced_before_rows_are_drawn_by_them():
    memory, _ = make(batch_rows=8)
    memory.ingest(0, 0, 1, block(episode(0, 6)), derive, drop_open=False)
    memory._ring["priority"][:4] = [np.nan, np.inf, -1.0, 0.25]
    memory.draw(0, 1, 4, exponent=1.0, beta=1.0)
    assert memory.mended == 3
    priorities = memory._ring["priority"][memory.live()]
    assert (priorities[:3] == 1).all()  # the largest there is: no update left one yet
    assert priorities[3] == 0.25
    memory._ring["priority"][:6] = np.nan
    memory.draw(0, 1, 6, exponent=1.0, beta=1.0)
    assert memory.mended > 3  # those that were drawn
    memory._ring["priority"][:6] = 0.5
    before = memory.mended
    plan = memory.draw(0, 1, 4, exponent=1.0, beta=1.0)
    memory.note_priorities(plan, 0, np.arange(4), np.array([np.nan, np.inf, 0.5, 0.5], np.float32))
    memory.settle(plan)
    assert np.isfinite(memory._ring["priority"][memory.live()]).all()
    assert memory.mended == before


def test_importance_weights_are_those_of_the_paper():
    memory, _ = make(stream_rows=8, batch_rows=4)
    memory.ingest(0, 0, 1, block(episode(0, 4)), derive, drop_open=False)
    memory._ring["priority"][memory.live()] = [1, 1, 2, 4]
    batch, _ = memory.gather(memory.draw(0, 1, 4, exponent=1.0, beta=0.5), 0)
    share = np.array([1, 1, 2, 4]) / 8
    expected = (4 * share) ** -0.5
    assert batch["weight"] == pytest.approx((expected / expected.max())[batch["value"].astype(int)])


def test_plans_repeat_for_the_same_seed_and_differ_from_one_to_the_next():
    def draws(seed):
        memory, _ = make()
        memory.ingest(0, 0, 1, block(episode(0, 6)), derive, drop_open=False)
        plans = [memory.draw(seed, 2, 3) for _ in range(2)]
        return [memory.gather(plan, k)[0]["value"].tolist() for plan in plans for k in range(2)]

    assert draws(3) == draws(3)
    assert draws(3)[0] != draws(3)[2]
    assert draws(3) != draws(4)


class Killed(Exception):
    pass


@pytest.mark.long
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    kill=st.integers(0, 40),
    sizes=st.lists(st.integers(1, 6), min_size=40, max_size=40),
)
@settings(max_examples=150, deadline=None)
def test_a_keeper_killed_anywhere_is_followed_by_one_that_ends_with_the_same_memory(lengths, kill, sizes):
    rows = [row for number, length in enumerate(lengths) for row in episode(number, length)]
    blocks, start = [], 0
    for size in sizes:
        if start < len(rows):
            blocks.append(block(rows[start : start + size]))
            start += size

    undisturbed, _ = make(stream_rows=12, keep_rows=5)
    for number, one in enumerate(blocks):
        undisturbed.ingest(0, number, 1, one, derive, drop_open=False)

    memory, buffer = make(stream_rows=12, keep_rows=5)
    writes = [0]

    def killing(segment):
        writes[0] += 1
        if writes[0] == kill:
            raise Killed
        return derive(segment)

    store = memory._books.committed.store

    def killing_store(state):
        writes[0] += 1
        if writes[0] == kill:
            raise Killed
        store(state)

    memory._books.committed.store = killing_store
    number = 0
    while number < len(blocks):
        try:
            memory.ingest(0, number, 1, blocks[number], killing, drop_open=False)
        except Killed:
            memory = ReplayMemory(memory.shape, buffer)
            number = memory.position(0)
        else:
            number += 1
    assert values(memory) == values(undisturbed)
    assert memory.ledger() == undisturbed.ledger()


def test_many_environments_and_episodes_in_one_block_are_stored_as_one_after_the_other():
    rng, envs = np.random.default_rng(5), 7
    together, _ = make(envs=envs, stream_rows=9, keep_rows=5, block_rows=100)
    alone, _ = make(envs=envs, stream_rows=9, keep_rows=5, block_rows=100)
    where = [(0, 0)] * envs
    for number in range(12):
        rows = []
        for env in rng.integers(0, envs, 100).tolist():
            episode, step = where[env]
            end = str(rng.choice(["", "", "", "", "terminated", "truncated", "cut"]))
            rows.append((env, episode, step, end))
            # Now and then a row is missing.
            where[env] = (episode + 1, 0) if end else (episode, step + 1 + int(rng.random() < 0.05))
        together.ingest(0, number, 1, block(rows), derive, drop_open=False)
        in_turn = sorted(rows, key=lambda row: row[0])  # environment after environment
        for k, row in enumerate(in_turn):
            alone.ingest(0, number * 100 + k, 1, block([row]), derive, drop_open=False)
    assert together.segments == alone.segments > 100
    for name, column in together._ring.items():
        assert column.tobytes() == alone._ring[name].tobytes(), name


def test_deriving_many_segments_at_once_stores_what_deriving_each_does():
    def derive_many(segments, lengths):
        return {"to_end": np.concatenate([np.arange(n, 0, -1) for n in lengths])}

    memories = [make(envs=2, stream_rows=30, keep_rows=20, block_rows=30)[0] for _ in range(2)]
    rows = [*episode(0, 4), *episode(1, 3), *episode(0, 5, env=1), *episode(2, 3)[:2]]
    for memory, many in zip(memories, (None, derive_many), strict=True):
        memory.ingest(0, 0, 1, block(rows), derive, drop_open=False, derive_many=many)
        memory.set_aside(0, 1, derive, derive_many=many)
        assert memory._ring["to_end"][memory.live()].tolist() == [4, 3, 2, 1, 3, 2, 1, 2, 1, 5, 4, 3, 2, 1]


def test_a_plan_whose_answer_was_lost_is_told_again_by_a_successor_and_no_other():
    memory, buffer = make()
    memory.ingest(0, 0, 1, block(episode(0, 6)), derive, drop_open=True)
    memory.begin_phase(5)
    assert memory.drawn_for(0) is None
    plan = memory.draw(3, 2, 4, call=7)
    successor = ReplayMemory(memory.shape, buffer, formatted=True)
    assert successor.drawn_for(7) == memory.drawn_for(7) == plan
    assert (successor.drawn_for(6), successor.drawn_for(8), successor.owed) == (None, None, 3)
    assert successor.draw(3, 2, 4)["number"] == plan["number"] + 1
    assert [successor.drawn_for(call) for call in (-1, 0, 1)] == [None, None, None]
    for call in (8, 9, 10):  # through all slots
        assert successor.draw(3, 1, 4, call=call) == successor.drawn_for(call)


def test_the_plan_of_a_lane_stays_in_its_slot_until_the_next_one_of_that_lane():
    shape = ReplayShape(3, 1, 16, 8, 6, 4, 2, COLUMNS.to_json(), DERIVED.to_json(), plan_slots=3)
    memory = ReplayMemory(shape, bytearray(shape.nbytes))
    memory.ingest(0, 0, 1, block(episode(0, 6)), derive, drop_open=True)
    memory.begin_phase(20)
    slow = memory.draw(3, 1, 4, call=1, lane=2)
    assert slow["slot"] == 2
    drawn = memory.gather(slow, 0)[0]["step"].tolist()
    for call in range(2, 9):
        plan = memory.draw(3, 1, 4, call=call, lane=call % 2)
        assert memory.drawn_for(call, call % 2) == plan
        assert plan["slot"] == call % 2
    assert memory.gather(slow, 0)[0]["step"].tolist() == drawn
    memory.note_priorities(slow, 0, np.arange(4), np.full(4, 5.0))
    assert memory.settle(slow) == 0
    assert memory.draw(3, 1, 4, lane=2)["slot"] == 2
    assert memory.draw(3, 1, 4)["slot"] < 2


def test_a_local_plan_is_of_the_rows_of_its_lane_alone():
    memory, _ = make(lanes=3, envs=2, stream_rows=8, batch_rows=6, plan_slots=3)
    for lane, length in ((0, 6), (2, 3)):
        for env in (0, 1):
            rows = block([(env, lane, step, "terminated" if step == length - 1 else "") for step in range(length)])
            memory.ingest(lane, env, 1, rows, derive, drop_open=True)
    memory.begin_phase(40)
    share = np.arange(1.0, 19.0)
    for how in ({}, {"share": share / share.sum()}):
        for lane, rows in ((0, 6), (2, 6), (1, 0)):
            plan = memory.draw(3, 4, 6, lane=lane, is_local=True, **how)
            assert plan["rows"] == rows
            for k in range(plan["updates"] if rows else 0):
                columns = memory.gather(plan, k)[0]
                assert set(columns["episode"].tolist()) == {lane}
                assert len(set(columns["value"].tolist())) == rows
    drawn = [memory.gather(memory.draw(3, 1, 6, lane=0), 0)[0]["episode"] for _ in range(8)]
    assert set(np.concatenate(drawn).tolist()) == {0, 2}


def test_the_rows_of_a_local_plan_weigh_by_their_shares_of_the_lane():
    memory, _ = make(lanes=2, envs=1, stream_rows=8, batch_rows=3, plan_slots=2)
    for lane in (0, 1):
        rows = block([(0, lane, step, "terminated" if step == 4 else "") for step in range(5)])
        memory.ingest(lane, 0, 1, rows, derive, drop_open=True)
    memory.begin_phase(40)
    share = np.arange(1.0, 11.0)
    plan = memory.draw(3, 4, 3, beta=0.5, share=share / share.sum(), lane=1, is_local=True)
    assert plan["updates"] == 4
    for k in range(4):
        columns = memory.gather(plan, k)[0]
        of_row = share[5 + columns["step"]]
        np.testing.assert_allclose(columns["weight"], np.sqrt(of_row.min() / of_row), rtol=1e-6)


def test_rows_come_with_the_priority_that_was_derived_and_are_drawn_by_it():
    derived = RowLayout((*DERIVED.columns, Column(INITIAL, "<f4")))
    shape = ReplayShape(1, 1, 16, 8, 6, 64, 8, COLUMNS.to_json(), derived.to_json())
    memory = ReplayMemory(shape, bytearray(shape.nbytes))

    def judge(segment):
        return derive(segment) | {INITIAL: segment["value"] % 100}

    for number, length in enumerate((4, 6)):
        memory.ingest(0, number, 1, block(episode(number, length)), judge, drop_open=False)
    rows = [memory.row(i) for i in memory.live()]
    assert [row["priority"] for row in rows] == [row["value"] % 100 for row in rows]
    plan = memory.draw(1, 8, 64, exponent=1.0)
    drawn = np.concatenate([memory.gather(plan, k)[0]["value"] for k in range(8)]) % 100
    # Of 21 parts: a stratified draw is off by one row in each minibatch at most.
    for step, share in ((0, 0), (1, 2), (2, 4), (3, 6), (4, 4), (5, 5)):
        assert abs((drawn == step).mean() - share / 21) < 0.04
    memory.ingest(0, 2, 1, block(episode(2, 6)), judge, drop_open=False)
    assert memory.row(10)["priority"] == 0


def test_an_infinite_priority_that_was_derived_is_the_largest_there_was():
    derived = RowLayout((*DERIVED.columns, Column(INITIAL, "<f4")))
    shape = ReplayShape(1, 1, 16, 8, 6, 64, 8, COLUMNS.to_json(), derived.to_json())
    memory = ReplayMemory(shape, bytearray(shape.nbytes))

    def begin(segment):
        return derive(segment) | {INITIAL: np.where(np.arange(len(segment["value"])) % 3 == 0, np.inf, 0)}

    memory.ingest(0, 0, 1, block(episode(0, 4)), begin, drop_open=False)
    plan = memory.draw(1, 2, 8, exponent=1.0)
    assert {*memory.gather(plan, 0)[0]["value"] % 100} == {0, 3}
    memory.note_priorities(plan, 0, np.arange(plan["rows"]), np.full(plan["rows"], 7.0))
    memory.settle(plan)
    memory.ingest(0, 1, 1, block(episode(1, 4)), begin, drop_open=False)
    assert [memory.row(i)["priority"] for i in memory.live()] == [7, 0, 0, 7, 7, 0, 0, 7]


def test_rows_have_no_stamp_while_their_bytes_change_and_gathered_ones_are_looked_at_afterwards(monkeypatch):
    """The order of stores and loads that `fences` speaks of, as the code keeps it."""
    memory, _ = make(stream_rows=8, batch_rows=2)
    memory.ingest(0, 0, 1, block(episode(0, 4)), derive, drop_open=False)
    plan = memory.draw(1, 1, 2)
    place, seen = int(memory._gatherer.plans[plan["slot"]]["index"][0, 0]), []

    def look():
        seen.append((int(memory._ring["stamp"][place]), float(memory._ring["value"][place])))

    monkeypatch.setattr("mlxe_async.memory.ring.fence", look)
    number = iter(range(1, 9))

    def overwrite():
        monkeypatch.setattr("mlxe_async.memory.gathering.fence", lambda: None)
        for begun in number:
            memory.ingest(0, begun, 1, block(episode(begun, 4)), derive, drop_open=False)
            if memory._ring["value"][place] != place:
                return

    for reuse in (False, True):
        monkeypatch.setattr("mlxe_async.memory.gathering.fence", overwrite)
        batch, positions = memory.gather(plan, 0, reuse=reuse)
        assert 0 not in positions
        assert place not in batch["value"].tolist()
    voided = [entry for entry in seen if entry[0] == 0]
    assert (0, float(place)) in voided
    assert any(value != place for _, value in voided)
