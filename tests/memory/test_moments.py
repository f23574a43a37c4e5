"""Running moments of a replay memory: each row that is taken in counts once, whatever happens to the keeper."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxe_async.memory.moments import pooled
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Column, RowLayout

ENTRIES = 3
FLAGS = tuple(Column(name, "|u1") for name in ("terminated", "truncated", "cut"))
COUNTERS = (Column("env", "<i4"), Column("episode", "<i8"), Column("step", "<i4"))
COLUMNS = RowLayout((Column("obs", "<f4", (ENTRIES,)), *FLAGS, *COUNTERS))
NOTHING = RowLayout(())


def derive(_segment):
    return {}


def make(lanes=1, envs=1, keep_rows=4, block_rows=6, moments=ENTRIES):
    shape = ReplayShape(
        lanes, envs, 16, keep_rows, block_rows, 4, 8, COLUMNS.to_json(), NOTHING.to_json(), moments=moments
    )
    buffer = bytearray(shape.nbytes)
    return ReplayMemory(shape, buffer), buffer


def block(rng, rows):
    """A block of rows (env, episode, step, whether it ends) with observations far from zero."""
    columns = COLUMNS.empty(len(rows))
    columns["obs"][:] = rng.normal(1000, (0.1, 1, 50), (len(rows), ENTRIES))
    for name in ("truncated", "cut"):
        columns[name][:] = 0
    for i, (env, episode, step, ends) in enumerate(rows):
        columns["env"][i], columns["episode"][i], columns["step"][i], columns["terminated"][i] = (
            env,
            episode,
            step,
            ends,
        )
    return columns


class Slow:
    """What counts, row by row."""

    def __init__(self, envs):
        self.closed, self.open, self.last = [], [[] for _ in range(envs)], [None] * envs

    def add(self, columns):
        for i, env in enumerate(columns["env"]):
            place = (columns["episode"][i], columns["step"][i] - 1)
            if self.last[env] != place:
                self.close(env)
            self.open[env].append(columns["obs"][i].astype(np.float64))
            self.last[env] = (columns["episode"][i], columns["step"][i])
            if columns["terminated"][i]:
                self.close(env)

    def close(self, env):
        self.closed += self.open[env]
        self.open[env] = []

    def forget(self):
        self.open = [[] for _ in self.open]

    @property
    def rows(self):
        return np.array(self.closed + list(itertools.chain(*self.open)))


def check(memory, rows):
    mean, variance, count = memory.moments()
    assert count == len(rows)
    if count:
        np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(variance, rows.var(0), rtol=1e-9, atol=1e-12)


class Killed(Exception):
    pass


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_each_row_counts_once_through_blocks_lives_and_deaths_of_the_keeper(data):
    envs = data.draw(st.sampled_from([1, 2, 3]), label="envs")
    lanes = data.draw(st.sampled_from([1, 2]), label="lanes")
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6), label="seed"))
    memory, buffer = make(lanes, envs)
    slow = [Slow(envs) for _ in range(lanes)]
    at = [[[0, 0] for _ in range(envs)] for _ in range(lanes)]
    epoch, sequence = [1] * lanes, [0] * lanes
    for _ in range(data.draw(st.integers(1, 8), label="blocks")):
        lane = data.draw(st.integers(0, lanes - 1))
        if data.draw(st.booleans()):  # another life of the executor
            epoch[lane] += 1
            drop = data.draw(st.booleans())
            if drop:
                slow[lane].forget()
            else:
                [slow[lane].close(env) for env in range(envs)]
            for place in at[lane]:
                place[:] = place[0] + 1, 0
        else:
            drop = True
        rows = []
        for _ in range(data.draw(st.integers(1, 6))):
            env = data.draw(st.integers(0, envs - 1))
            ends = data.draw(st.booleans())
            rows.append((env, *at[lane][env], ends))
            at[lane][env] = [at[lane][env][0] + 1, 0] if ends else [at[lane][env][0], at[lane][env][1] + 1]
        if data.draw(st.booleans(), label="a row is missing"):
            env = rows[-1][0]
            at[lane][env] = [at[lane][env][0], at[lane][env][1] + 1]
        columns = block(rng, rows)
        if data.draw(st.booleans(), label="killed"):

            def die():
                raise Killed

            memory._books.store = die
            with pytest.raises(Killed):
                memory.ingest(lane, sequence[lane], epoch[lane], columns, derive, drop_open=drop)
            memory = ReplayMemory(memory.shape, buffer)
        memory.ingest(lane, sequence[lane], epoch[lane], columns, derive, drop_open=drop)
        memory.ingest(lane, sequence[lane], epoch[lane], columns, derive, drop_open=drop)  # heard of twice
        sequence[lane] += 1
        slow[lane].add(columns)
        check(memory, np.concatenate([some.rows.reshape(-1, ENTRIES) for some in slow]))
    taken = sum(lane["rows"] - lane["dropped"] for lane in memory.ledger())
    assert memory.moments()[2] == taken


def test_a_segment_that_is_longer_than_the_staging_area_counts_whole_and_is_dropped_whole():
    rng = np.random.default_rng(0)
    memory, _ = make(keep_rows=4, block_rows=6)
    blocks = [block(rng, [(0, 0, start + i, False) for i in range(6)]) for start in range(0, 60, 6)]
    for number, columns in enumerate(blocks):
        memory.ingest(0, number, 1, columns, derive, drop_open=True)
    check(memory, np.concatenate([columns["obs"] for columns in blocks]).astype(np.float64))
    again = block(rng, [(0, 1, i, i == 5) for i in range(6)])
    memory.ingest(0, 10, 2, again, derive, drop_open=True)
    check(memory, again["obs"].astype(np.float64))


def test_a_damaged_block_costs_its_own_rows_only():
    rng = np.random.default_rng(0)
    memory, _ = make()
    kept = [block(rng, [(0, 0, i, False) for i in range(6)]), block(rng, [(0, 0, 12 + i, False) for i in range(6)])]
    memory.ingest(0, 0, 1, kept[0], derive, drop_open=True)
    memory.set_aside(0, 1, derive)
    memory.ingest(0, 2, 1, kept[1], derive, drop_open=True)
    check(memory, np.concatenate([columns["obs"] for columns in kept]).astype(np.float64))


def test_the_bits_do_not_depend_on_which_lane_was_read_first():
    rng = np.random.default_rng(0)
    blocks = [[block(rng, [(0, b, i, i == 4) for i in range(5)]) for b in range(3)] for _ in range(2)]
    told = []
    for order in ([0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 0, 1]):
        memory, _ = make(lanes=2)
        following = [0, 0]
        for lane in order:
            memory.ingest(lane, following[lane], 1, blocks[lane][following[lane]], derive, drop_open=False)
            following[lane] += 1
        told.append([part.tobytes() for part in memory.moments()[:2]])
    assert told[0] == told[1]


def test_a_plan_tells_the_moments_of_the_time_it_was_drawn():
    rng = np.random.default_rng(0)
    memory, buffer = make()
    first, second = (block(rng, [(0, b, i, i == 5) for i in range(6)]) for b in range(2))
    memory.ingest(0, 0, 1, first, derive, drop_open=False)
    plan = memory.draw(0, 2, 4)
    memory.ingest(0, 1, 1, second, derive, drop_open=False)
    learner = ReplayMemory(memory.shape, buffer)
    mean, variance, count = learner.moments(plan)
    assert count == 6
    np.testing.assert_allclose(mean, first["obs"].astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(variance, first["obs"].astype(np.float64).var(0), rtol=1e-9)
    assert learner.moments(memory.draw(0, 2, 4))[2] == 12


def test_counting_goes_on_from_what_came_before():
    rng = np.random.default_rng(0)
    before = rng.normal(5, 2, (100, ENTRIES))
    memory, _ = make()
    memory.begin_moments(before.mean(0), before.var(0), 100)
    columns = block(rng, [(0, 0, i, False) for i in range(6)])
    memory.ingest(0, 0, 1, columns, derive, drop_open=False)
    check(memory, np.concatenate([before, columns["obs"].astype(np.float64)]))


def test_without_rows_the_moments_change_nothing():
    memory, _ = make()
    mean, variance, count = memory.moments()
    assert (mean.tolist(), variance.tolist(), count) == ([0.0] * ENTRIES, [1.0] * ENTRIES, 0)
    assert pooled(np.zeros((3, 7))).tolist() == [0.0] * 7


def test_a_memory_that_counts_nothing_has_the_bytes_and_the_shape_it_always_had():
    memory, _ = make(moments=0)
    assert "moments" not in memory.shape.to_json()
    assert ReplayShape(**memory.shape.to_json()) == memory.shape
    assert "moments" not in memory.raw()


@pytest.mark.parametrize("pixels", ["|u1", "<f4"])
def test_pictures_behind_the_numbers_of_an_observation_are_not_counted(pixels):
    rng = np.random.default_rng(0)
    rows = block(rng, [(0, 0, i, i == 5) for i in range(6)])
    numbers = rows["obs"].copy()
    seen = rng.integers(0, 256, (6, 8)).astype(pixels)
    columns = numbers.view(pixels) if pixels == "|u1" else numbers
    rows["obs"] = np.concatenate([columns, seen], 1)
    layout = RowLayout((Column("obs", pixels, rows["obs"].shape[1:]), *FLAGS, *COUNTERS))
    shape = ReplayShape(1, 1, 16, 4, 6, 4, 8, layout.to_json(), NOTHING.to_json(), moments=ENTRIES)
    memory = ReplayMemory(shape, bytearray(shape.nbytes))
    memory.ingest(0, 0, 1, rows, derive, drop_open=True)
    check(memory, numbers.astype(np.float64))
