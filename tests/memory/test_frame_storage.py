"""Frames stored once: whatever came, the same bits come out as of a memory that stores every stack whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxe_async.memory import sum_tree
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Column, RowLayout

DEPTH, BATCH = 3, 6


def layouts(dtype, frame):
    shape = (DEPTH, *frame)
    columns = (
        Column("obs", dtype, shape),
        Column("next_obs", dtype, shape),
        Column("value", "<f4"),
        *(Column(name, "|u1") for name in ("terminated", "truncated", "cut")),
        Column("env", "<i4"),
        Column("episode", "<i8"),
        Column("step", "<i4"),
    )
    return RowLayout(columns), RowLayout((Column("cut_obs", dtype, shape), Column("ahead", "<i4")))


def deriving(ahead):
    def derive(segment):
        n = len(segment["value"])
        return {"cut_obs": segment["next_obs"][np.minimum(np.arange(n) + ahead, n - 1)], "ahead": np.full(n, ahead)}

    return derive


def both(dtype="|u1", frame=(2, 2), envs=1, lanes=1, stream_rows=12, keep_rows=7, block_rows=5):
    """The same memory twice: with each frame stored once, and with whole stacks."""
    columns, derived = layouts(dtype, frame)
    sizes = (lanes, envs, stream_rows, keep_rows, block_rows, BATCH, 4, columns.to_json(), derived.to_json())
    shapes = [ReplayShape(*sizes, frames=frames) for frames in (DEPTH, 0)]
    return [ReplayMemory(shape, bytearray(shape.nbytes)) for shape in shapes]


def played(
    rng, lengths, *, padding="reset", dtype="|u1", frame=(2, 2), envs=1, ends="terminated", lie=0.0, colours=256
):
    """Rows of episodes of these lengths, each environment's own, as a stacking wrapper makes them."""
    columns, _ = layouts(dtype, frame)
    rows = []

    def seen():
        picture = rng.integers(0, colours, frame)
        return picture.astype(dtype) if dtype == "|u1" else (picture / 7).astype(dtype)

    for number, length in enumerate(lengths):
        stacks = []
        for _ in range(envs):
            first = seen()
            pad = {"reset": first, "zero": np.zeros_like(first), "own": np.full_like(first, 3)}[padding]
            stacks.append(np.stack([pad] * (DEPTH - 1) + [first]))
        for step in range(length):
            for env in range(envs):
                row = {name: column[0] for name, column in columns.empty(1).items()}
                after = np.concatenate((stacks[env][1:], seen()[None]))
                if rng.random() < lie:
                    after = np.stack([seen() for _ in range(DEPTH)])
                row |= {"obs": stacks[env], "next_obs": after, "value": rng.random()}
                over = step == length - 1
                row |= {name: over and ends == name for name in ("terminated", "truncated", "cut")}
                row |= {"env": env, "episode": number, "step": step}
                rows.append(row)
                stacks[env] = after if rng.random() >= lie else np.stack([seen() for _ in range(DEPTH)])
    return {c.name: np.array([row[c.name] for row in rows], c.dtype).reshape(-1, *c.shape) for c in columns.columns}


def blocks(rows, size):
    count = len(rows["env"])
    return [{n: c[start : start + size] for n, c in rows.items()} for start in range(0, count, size)]


def filled(memory, rows, derive, size=5, lane=0):
    for block in blocks(rows, size):
        memory.ingest(lane, memory.position(lane), 1, block, derive, drop_open=False)


def by_stamp(memory):
    live = memory.live()
    columns = memory.columns(live) | {name: memory._ring[name][live] for name in ("stamp", "left")}
    rows = [{name: column[i] for name, column in columns.items()} for i in range(len(live))]
    return {int(row["stamp"]): row for row in rows}


def assert_alike(row, other):
    for name in ("obs", "next_obs", "cut_obs", "value", "ahead", "left", "step"):
        assert row[name].dtype == other[name].dtype
        assert row[name].shape == other[name].shape
        assert row[name].tobytes() == other[name].tobytes(), name


RUNS = {
    "lengths": st.lists(st.integers(1, 19), min_size=1, max_size=6),
    "padding": st.sampled_from(["reset", "zero", "own"]),
    "envs": st.integers(1, 2),
    "lie": st.sampled_from([0.0, 0.0, 0.2]),
    "colours": st.sampled_from([1, 2, 256]),
    "ends": st.sampled_from(["terminated", "truncated", "cut"]),
    "sizes": st.tuples(st.integers(1, 17), st.integers(1, 9), st.integers(1, 6)),
    "ahead": st.integers(0, 4),
    "seed": st.integers(0, 2**32),
}


def check_rows(lengths, padding, envs, lie, colours, ends, sizes, ahead, seed):
    rng, derive = np.random.default_rng(seed), deriving(ahead)
    stream_rows, keep_rows, block_rows = sizes
    keep_rows = min(keep_rows, stream_rows)
    framed, plain = both(envs=envs, stream_rows=stream_rows, keep_rows=keep_rows, block_rows=block_rows)
    rows = played(rng, lengths, padding=padding, envs=envs, ends=ends, lie=lie, colours=colours)
    for block in blocks(rows, block_rows):
        for memory in (framed, plain):
            memory.ingest(0, memory.position(0), 1, block, derive, drop_open=False)
        ours, theirs = by_stamp(framed), by_stamp(plain)
        assert ours.keys() <= theirs.keys()
        assert 0 not in ours
        for stamp, row in ours.items():
            assert_alike(row, theirs[stamp])
        # Of each environment the newest ones: an older row never outlives a newer one.
        for env in range(envs):
            mine = sorted(s for s, row in theirs.items() if row["env"] == env)
            held = [s for s in mine if s in ours]
            assert held == mine[len(mine) - len(held) :]
        assert framed.overwritten + len(framed) == plain.overwritten + len(plain)
        if len(framed):
            plan = framed.draw(seed, 2, BATCH, exponent=0.5)
            for k in range(2):
                stamps = framed._gatherer.plans[plan["slot"]]["stamp"][k, : plan["rows"]].tolist()
                assert set(stamps) <= ours.keys()
                for reuse in (False, True):
                    batch, positions = framed.gather(plan, k, reuse=reuse)
                    assert len(positions) == len(stamps)
                    for place, stamp in enumerate(stamps):
                        assert all(
                            batch[name][place].tobytes() == theirs[stamp][name].tobytes()
                            for name in ("obs", "next_obs", "cut_obs", "value")
                        )


@pytest.mark.long
def test_rows_are_those_of_a_memory_of_whole_stacks_whatever_the_wrapper_does(monkeypatch):
    monkeypatch.setattr(sum_tree, "TOP", 3)
    settings(max_examples=25, deadline=None)(given(**RUNS)(check_rows))()


@pytest.mark.slow
def test_the_same_with_very_many_runs(monkeypatch):
    monkeypatch.setattr(sum_tree, "TOP", 3)
    settings(max_examples=300, deadline=None)(given(**RUNS)(check_rows))()


@pytest.mark.parametrize(("dtype", "frame"), [("|u1", (3, 3)), ("<f4", (2, 4)), ("<f4", ())])
def test_batches_are_the_same_bit_for_bit_across_streams_and_the_ring_s_end(dtype, frame):
    rng = np.random.default_rng(5)
    memories = both(dtype, frame, envs=2, lanes=2, stream_rows=40, keep_rows=30, block_rows=8)
    for lane in range(2):
        rows = played(rng, [9, 13, 30, 11, 17], dtype=dtype, frame=frame, envs=2, ends="truncated")
        for memory in memories:
            filled(memory, rows, deriving(2), 8, lane)
    framed, plain = memories
    assert len(framed) == len(plain) == 160  # nothing went that need not go
    assert framed.overwritten > 0
    for how in ({}, {"exponent": 0.7, "beta": 0.4}, {"share": np.full(160, 1 / 160)}):
        plans = [memory.draw(3, 4, BATCH, **how) for memory in memories]
        for k in range(4):
            for arguments in ({"reuse": True}, {}, {"window": 3}):
                (ours, mine), (theirs, other) = (
                    memory.gather(plan, k, **arguments) for memory, plan in zip(memories, plans, strict=True)
                )
                assert ours.keys() == theirs.keys()
                assert mine.tolist() == other.tolist()
                for name, column in theirs.items():
                    assert ours[name].dtype == column.dtype
                    assert ours[name].shape == column.shape
                    assert ours[name].tobytes() == column.tobytes(), name


def test_each_frame_is_stored_once_also_across_segments():
    framed, _ = both(stream_rows=64, keep_rows=32)
    rng = np.random.default_rng(1)
    rows = played(rng, [40], ends="cut")
    rows["cut"][7::8] = 1  # rollouts of 8
    filled(framed, rows, deriving(2))
    assert framed._books.frame_head.tolist() == [41]
    filled(framed, played(rng, [3], padding="zero"), deriving(2))
    assert framed._books.frame_head.tolist() == [45]
    assert framed.shape.nbytes < 64 * 3 * 3 * 4 + 40_000


def test_a_row_whose_frames_were_overwritten_after_the_draw_is_left_out():
    framed, _ = both(stream_rows=16, keep_rows=8)
    rng = np.random.default_rng(2)
    filled(framed, played(rng, [8, 8]), deriving(0))
    plan = framed.draw(0, 1, BATCH)
    stamps = framed._gatherer.plans[plan["slot"]]["stamp"][0].copy()
    # Stacks that have nothing to do with each other take the room of many frames, but of few rows.
    filled(framed, played(rng, [4], lie=1.0), deriving(0))
    assert framed._books.head.tolist() == [20]
    left = set(by_stamp(framed))
    assert len(left) < 16
    for reuse in (True, False):
        batch, positions = framed.gather(plan, 0, reuse=reuse)
        assert positions.tolist() == [i for i, stamp in enumerate(stamps) if int(stamp) in left]
        assert len(batch["obs"]) == len(batch["value"]) == len(positions) < BATCH


class Killed(Exception):
    pass


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    kill=st.integers(0, 30),
    stream_rows=st.integers(3, 14),
    lie=st.sampled_from([0.0, 0.0, 0.3]),
)
@settings(max_examples=40, deadline=None)
def test_a_keeper_killed_anywhere_is_followed_by_one_that_ends_with_the_same_frames(lengths, kill, stream_rows, lie):
    rows = played(np.random.default_rng(0), lengths, ends="cut", lie=lie)
    memory, _ = both(stream_rows=stream_rows, keep_rows=min(5, stream_rows))
    undisturbed, _ = both(stream_rows=stream_rows, keep_rows=min(5, stream_rows))
    filled(undisturbed, rows, deriving(1))
    writes, buffer = [0], memory._buffer

    def killed_perhaps():
        writes[0] += 1
        if writes[0] == kill:
            raise Killed

    def deriving_perhaps(segment):
        killed_perhaps()
        return deriving(1)(segment)

    def guarded(memory):
        store, write = memory._books.committed.store, memory._ingester.ring.frames.write

        def storing(state):
            killed_perhaps()
            store(state)

        def writing(stream, layout):
            killed_perhaps()
            write(stream, layout)
            killed_perhaps()

        memory._books.committed.store, memory._ingester.ring.frames.write = storing, writing
        return memory

    memory, every = guarded(memory), blocks(rows, 5)
    while (number := memory.position(0)) < len(every):
        try:
            memory.ingest(0, number, 1, every[number], deriving_perhaps, drop_open=False)
        except Killed:
            memory = guarded(ReplayMemory(memory.shape, buffer))
    ours, theirs = by_stamp(memory), by_stamp(undisturbed)
    assert ours.keys() == theirs.keys()
    for stamp, row in ours.items():
        assert_alike(row, theirs[stamp])
    assert memory._books.frame_head.tolist() == undisturbed._books.frame_head.tolist()


def test_a_successor_goes_on_where_the_bytes_say():
    framed, plain = both(stream_rows=20, keep_rows=8)
    rng = np.random.default_rng(4)
    first, second = played(rng, [9, 7], ends="cut"), played(rng, [5, 8], ends="cut")
    for memory in (framed, plain):
        filled(memory, first, deriving(2))
    copy = bytearray(framed.shape.nbytes)
    successor = ReplayMemory(framed.shape, copy)
    for name, view in successor.raw().items():
        view[:] = framed.raw()[name]
    successor.reload()
    for memory in (framed, plain, successor):
        filled(memory, second, deriving(2))
    theirs = by_stamp(plain)
    for memory in (framed, successor):
        assert by_stamp(memory).keys() == theirs.keys()
        for stamp, row in by_stamp(memory).items():
            assert_alike(row, theirs[stamp])
    plans = [memory.draw(1, 2, BATCH, exponent=1.0) for memory in (framed, successor)]
    for k in range(2):
        ours, others = (memory.gather(plan, k)[0] for memory, plan in zip((framed, successor), plans, strict=True))
        assert all(ours[name].tobytes() == others[name].tobytes() for name in others)


def test_frames_must_be_those_of_the_observations():
    columns, derived = layouts("|u1", (2, 2))
    with pytest.raises(ValueError, match=r"stacks of 4 frames: expected observations \(4, \.\.\.\), got \(3, 2, 2\)"):
        ReplayShape(1, 1, 8, 4, 4, 4, 4, columns.to_json(), derived.to_json(), frames=4)
