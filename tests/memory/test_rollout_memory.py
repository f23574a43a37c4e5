"""The rollout memory: whole rollouts, each handed out once, oldest first."""

import numpy as np
import pytest

from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.rows import Column, RowLayout

COLUMNS = RowLayout((Column("value", "<f4"), Column("last", "|u1"), Column("env", "<i4"), Column("version", "<i8")))


def make(lanes=2, envs=2, slots=3, slot_rows=8):
    shape = RolloutShape(lanes, envs, slots, slot_rows, COLUMNS.to_json())
    buffer = bytearray(shape.nbytes)
    return RolloutMemory(shape, buffer), buffer


def block(values, *, version=1, last=False, envs=2):
    rows = COLUMNS.empty(len(values))
    rows["value"][:], rows["version"][:], rows["last"][:] = values, version, 0
    rows["env"][:] = np.arange(len(values)) % envs
    rows["last"][-1] = last
    return rows


def ingest(memory, lane, sequence, values, epoch=1, **how):
    return memory.ingest(lane, sequence, epoch, block(values, **how), None, drop_open=False)


def test_a_rollout_is_ready_when_its_last_row_is_in():
    memory, _ = make()
    ingest(memory, 0, 0, [1, 2])
    assert memory.draw(1)["updates"] == 0
    ingest(memory, 0, 1, [3, 4], last=True)
    plan = memory.draw(1)
    batch, left_out = memory.gather(plan)
    assert batch["value"].tolist() == [[1, 2], [3, 4]]
    assert left_out == 0


def test_without_a_free_slot_nothing_more_is_taken_in_until_one_is_settled():
    memory, _ = make(slots=2)
    for sequence in range(2):
        ingest(memory, 0, sequence, [sequence], last=True)
    assert memory.room(0) == 0
    with pytest.raises(BufferError, match="free slot"):
        ingest(memory, 0, 2, [9], last=True)
    plan = memory.draw(1)
    assert memory.room(0) == 0
    memory.settle(plan)
    assert memory.room(0) == 1


def test_rollouts_of_all_lanes_come_in_the_order_of_the_lanes_whoever_was_faster():
    orders = []
    for first, second in ((0, 1), (1, 0)):
        memory, _ = make()
        ingest(memory, first, 0, [first * 10], last=True)
        ingest(memory, second, 0, [second * 10], last=True)
        orders.append(memory.gather(memory.draw(2))[0]["value"].ravel().tolist())
    assert orders == [[0, 10], [0, 10]]


def values_of(memory, plan):
    return memory.gather(plan)[0]["value"].T.ravel().tolist() if plan["updates"] else []


@pytest.mark.parametrize(("whole", "drawn", "left"), [(False, [0, 1, 2, 3], [4, 5]), (True, [0, 1, 2, 3, 4, 5], [])])
def test_rollouts_are_drawn_by_rows_until_there_are_enough_or_all_that_there_are(whole, drawn, left):
    memory, _ = make(envs=1, slots=4)
    for sequence in range(3):
        assert memory.draw_rows(7, whole=whole)["updates"] == 0
        values = [2 * sequence, 2 * sequence + 1]
        memory.ingest(0, sequence, 1, block(values, last=True, envs=1), None, drop_open=False)
    plan = memory.draw_rows(3, whole=whole)
    assert (values_of(memory, plan), plan["rows"]) == (drawn, len(drawn))
    assert values_of(memory, memory.draw_rows(2, whole=whole)) == left


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_there_must_do_where_there_is_no_room_for_more(whole):
    memory, _ = make(envs=1, slots=2)
    for sequence in range(2):
        memory.ingest(0, sequence, 1, block([sequence], last=True, envs=1), None, drop_open=False)
    assert values_of(memory, memory.draw_rows(100, whole=whole)) == [0, 1]


def test_a_rollout_older_than_the_bound_is_left_out_and_counted():
    memory, _ = make()
    ingest(memory, 0, 0, [1, 2], version=3, last=True)
    ingest(memory, 1, 0, [5, 6], version=7, last=True)
    batch, left_out = memory.gather(memory.draw(2), oldest_version=4)
    assert batch["value"].tolist() == [[5, 6]]
    assert left_out == 1


def test_a_shorter_environment_is_padded_and_marked():
    memory, _ = make()
    ingest(memory, 0, 0, [1, 2, 3], last=True)
    batch, _ = memory.gather(memory.draw(1))
    assert batch["value"].tolist() == [[1, 2], [3, 2]]
    assert batch["valid"].tolist() == [[True, True], [True, False]]


def test_half_a_rollout_of_a_dead_executor_is_dropped_and_counted():
    memory, _ = make()
    ingest(memory, 0, 0, [1, 2])
    assert ingest(memory, 0, 1, [3, 4], epoch=2, last=True).dropped == 2
    assert memory.gather(memory.draw(1))[0]["value"].tolist() == [[3, 4]]
    assert memory.ledger()[0] == {"position": 2, "rows": 4, "dropped": 2, "corrupt": 0}


def test_what_a_learner_that_died_had_taken_is_handed_out_again():
    memory, buffer = make()
    ingest(memory, 0, 0, [1, 2], last=True)
    memory.draw(1)
    successor = RolloutMemory(memory.shape, buffer)
    assert successor.return_taken() == 1
    assert successor.gather(successor.draw(1))[0]["value"].tolist() == [[1, 2]]


def test_a_rollout_longer_than_its_slot_is_refused_by_name():
    memory, _ = make(slot_rows=2)
    with pytest.raises(BufferError, match=r"an episode of more than 2 rows, .* raise memory\.capacity_rows"):
        ingest(memory, 0, 0, [1, 2, 3])


def test_a_learner_of_another_process_gathers_what_was_drawn_after_it_had_begun():
    keeper, buffer = make()
    learner = RolloutMemory(keeper.shape, buffer)
    ingest(keeper, 0, 0, [1, 2, 3, 4], last=True)
    batch, _ = learner.gather(keeper.draw(1), oldest_version=1)
    assert batch["value"].tolist() == [[1, 2], [3, 4]]


def test_the_bytes_of_a_memory_are_all_there_is_to_it():
    memory, _ = make()
    ingest(memory, 0, 0, [1, 2], epoch=3)
    other, _ = make()
    for name, view in other.raw().items():
        view[:] = memory.raw()[name]
    other.reload()
    assert (other.position(0), other.epoch(0), other.epoch(1)) == (1, 3, 0)
    for one in (memory, other):
        ingest(one, 0, 1, [3, 4], epoch=3, last=True)
    assert other.gather(other.draw(1))[0]["value"].tolist() == memory.gather(memory.draw(1))[0]["value"].tolist()
    assert other.ledger() == memory.ledger()


def test_environments_that_miss_steps_keep_their_rows_in_order_and_those_without_any_have_no_column():
    memory, _ = make(envs=4, slot_rows=16)
    rows = COLUMNS.empty(7)
    # Step by step: all but 3; only 0 and 2; 2 alone; 0 again. Number 3 never.
    rows["env"][:], rows["value"][:], rows["version"][:] = [0, 1, 2, 0, 2, 2, 0], np.arange(7), 1
    rows["last"][:] = [0] * 6 + [1]
    memory.ingest(0, 0, 1, rows, None, drop_open=False)
    batch, _ = memory.gather(memory.draw(1))
    assert batch["value"].T.tolist() == [[0, 3, 6], [1, 1, 1], [2, 4, 5]]
    assert batch["valid"].T.tolist() == [[True] * 3, [True, False, False], [True] * 3]


def test_rollouts_of_different_lengths_stand_side_by_side():
    memory, _ = make()
    ingest(memory, 0, 0, [1, 2, 3, 4], last=True)
    ingest(memory, 1, 0, [5, 6], last=True)
    batch, _ = memory.gather(memory.draw(2))
    assert batch["value"].tolist() == [[1, 2, 5, 6], [3, 4, 5, 6]]
    assert batch["valid"].tolist() == [[True] * 4, [True, True, False, False]]


def test_a_plan_that_is_settled_again_by_a_successor_frees_nothing_that_came_since():
    memory, buffer = make(slots=2)
    ingest(memory, 0, 0, [1, 2], last=True)
    ingest(memory, 1, 0, [3, 4], last=True)
    plan = memory.draw(2)
    memory.settle(plan)
    ingest(memory, 0, 1, [5, 6], last=True)
    ingest(memory, 1, 1, [7, 8])
    successor = RolloutMemory(memory.shape, buffer)
    successor.return_taken()
    successor.settle(plan)
    ingest(successor, 1, 2, [9, 9], last=True)
    assert successor.gather(successor.draw(2))[0]["value"].tolist() == [[5, 6, 7, 8], [5, 6, 9, 9]]


def test_a_plan_whose_learner_died_is_settled_by_its_successor():
    memory, buffer = make(slots=1)
    ingest(memory, 0, 0, [1, 2], last=True)
    plan = memory.draw(1)
    successor = RolloutMemory(memory.shape, buffer)
    assert successor.return_taken() == 1
    successor.settle(plan)
    assert (successor.ready, successor.room(0)) == (0, 1)


def test_what_is_kept_per_rollout_is_that_of_each_environments_first_row():
    layout = COLUMNS.with_columns([Column("hidden", "<f4", (2,), per_rollout=True)])
    assert RowLayout.from_json(layout.to_json()) == layout
    shape = RolloutShape(2, 3, 3, 8, layout.to_json())
    buffer = bytearray(shape.nbytes)
    memory = RolloutMemory(shape, buffer)

    def take(lane, sequence, envs, hidden, *, last):
        rows = layout.empty(len(envs))
        rows["env"][:], rows["hidden"][:], rows["version"][:], rows["last"][:] = envs, np.array(hidden)[:, None], 1, 0
        rows["last"][-1] = last
        memory.ingest(lane, sequence, 1, rows, None, drop_open=False)

    take(0, 0, [0, 2, 0], [1, 2, 3], last=False)
    take(0, 1, [2, 1, 0], [4, 5, 6], last=True)  # environment 1 begins late
    take(1, 0, [2, 2], [7, 8], last=True)
    memory = RolloutMemory(shape, buffer)
    memory.reload()
    batch, _ = memory.gather(memory.draw(2))
    assert batch["hidden"].tolist() == [[1, 1], [5, 5], [2, 2], [7, 7]]  # of environments 0, 1, 2, and 2 of the other
    assert batch["valid"].sum(0).tolist() == [3, 1, 2, 2]
    plan = memory.draw(1)
    assert plan["updates"] == 0
    whole = shape.parts()
    assert [name for name, _ in whole] == ["bookkeeping", "rollouts", "firsts"]
    assert [name for name, _ in RolloutShape(2, 3, 3, 8, COLUMNS.to_json()).parts()] == ["bookkeeping", "rollouts"]
