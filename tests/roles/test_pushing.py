"""What a worker pushes leads the learner to where the worker's own update leads, whatever rows the learner has."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from mlxe_async.algorithms import Clock
from mlxe_async.algorithms.state.backward import ExchangesGradients
from mlxe_async.errors import CorruptRecord, StepsDiffer
from mlxe_async.fast import updates
from mlxe_async.ipc.shared.pushes import LEAST_BYTES, PushSlot
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.maths import together
from mlxe_async.roles.pushing import Given, Pushing, Recorder, fewest

sys.path += [str(Path(__file__).parents[1] / "fast"), str(Path(__file__).parent)]
from made_rows import SPACES, agent, rollout
from test_team import CASES, IDS

ROLLOUTS = {"a2c", "impala", "ppo", "reinforce"}
PUSHED = [pytest.param(*case, id=name) for case, name in zip(CASES, IDS, strict=True) if case[0] in ROLLOUTS]


@pytest.fixture
def slot():
    with Segment.create("push", LEAST_BYTES, grows=True) as segment:
        yield PushSlot(segment)


def rows_of(algorithm, seed=0):
    rows = rollout(algorithm, length=16, width=3, seed=seed)
    for column in algorithm.carry:
        rows[column.name] = np.random.default_rng(3).normal(size=3)
    return rows


def numbers(algorithm):
    return {name: np.array(array) for name, array in algorithm.state().items() if array.dtype.kind == "f"}


class Pushed:
    """A worker and where its pushes go."""

    def __init__(self, worker, slot, *, fast):
        self.worker, self.slot, self.pushing = worker, slot, Pushing(0, 0)
        self.way = updates(worker, fast=fast)

    def by(self, rows, clock):
        """What it pushes that learns from these rows, read as the learner reads it."""
        twin = self.way.twin is not None
        with self.pushing.recording(self.worker, clock.updates + 1, twin=twin) as recorder:
            together.learn_from(rows["valid"].sum())
            self.way.update(rows, clock)
        self.slot.write(clock.updates + 1, recorder.entries)
        return self.slot.read(clock.updates + 1)


class Server:
    """A learner that steps by pushes, with rows of its own."""

    def __init__(self, learner, *, fast):
        self.learner, self.way, self.exchanges = learner, updates(learner, fast=fast), ExchangesGradients()

    def step(self, entries, rows, clock):
        if self.way.twin is None:
            self.exchanges.follow(self.learner)
        given = Given(entries)
        with together.learning_in(given):
            self.way.update(rows, clock)
        given.expect_end()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("name", "spaces", "settings"), PUSHED)
def test_the_learner_comes_to_what_the_worker_comes_to_by_a_few_other_rows(slot, name, spaces, settings, fast):
    worker, server = (agent(name, spaces=spaces, seed=seed, **settings) for seed in (1, 2))
    server.restore(worker.state())
    pushed, served = Pushed(worker, slot, fast=fast), Server(server, fast=fast)
    for k in range(3):
        clock = Clock(env_steps=100 * (k + 1), episodes=k, updates=k, version=k)
        entries = pushed.by(rows_of(worker, seed=k), clock)
        gradients = sum(kind == together.GRADIENT for kind, _ in entries)
        few = fewest(rows_of(server, seed=9), gradients, {column.name for column in server.carry})
        assert few["valid"].size < rows_of(server)["valid"].size or gradients > 24
        before = numbers(server)
        served.step(entries, few, clock)
        mine, its = numbers(server), numbers(worker)
        assert mine.keys() == its.keys()
        for entry in mine:
            assert np.array_equal(mine[entry], its[entry]), entry
        assert any(not np.array_equal(mine[entry], before[entry]) for entry in mine)


def test_one_worker_alone_learns_what_a_learner_learns(slot):
    alone, worker = agent("a2c"), agent("a2c")
    rows = rows_of(alone)
    updates(alone, fast=False).update(rows, Clock())
    Pushed(worker, slot, fast=False).by(rows, Clock())
    for name, array in numbers(alone).items():
        np.testing.assert_array_equal(numbers(worker)[name], array)


def test_a_push_of_other_steps_is_refused(slot):
    entries = Pushed(agent("a2c"), slot, fast=False).by(rows_of(agent("a2c")), Clock())
    wider = agent("a2c", policy=[32])
    with pytest.raises(StepsDiffer, match="the learner asks for"):
        Server(wider, fast=False).step(entries, rows_of(wider), Clock())
    again = agent("a2c")
    with pytest.raises(StepsDiffer, match="made 1 exchanges more"):
        Server(again, fast=False).step([*entries, entries[-1]], rows_of(again), Clock())
    with pytest.raises(StepsDiffer, match="gave nothing"):
        Server(agent("a2c"), fast=False).step(entries[:-1], rows_of(again), Clock())


def test_a_group_of_one_gives_back_what_it_was_given():
    recorder = Recorder()
    with together.learning_in(recorder):
        assert together.moments(np.array([1.0, 3.0])) == (2.0, 1.0)
        assert together.mean(5.0, 3) == 5.0
    assert [kind for kind, _ in recorder.entries] == [together.STATISTIC] * 2
    with together.learning_in(Given(recorder.entries)):
        assert together.moments(np.array([7.0])) == (2.0, 1.0)
        assert together.mean(9.0, 1) == 5.0


# -- the place in shared memory --


def of(*sizes):
    rng = np.random.default_rng(0)
    return [("gradient", rng.normal(size=size).astype(np.float32)) for size in sizes]


def test_a_push_is_read_as_it_was_written_however_it_grows():
    with (
        Segment.create("push", LEAST_BYTES, grows=True) as segment,
        Segment.attach("push", os.dup(segment.fd)) as other,
    ):
        writer, reader = PushSlot(segment), PushSlot(other)
        for number, sizes in enumerate([(3,), (1000, 5), (200_000, 1), (7,)], 1):
            entries = of(*sizes)
            writer.write(number, entries)
            found = reader.read(number)
            assert [kind for kind, _ in found] == [kind for kind, _ in entries]
            for (_, mine), (_, its) in zip(entries, found, strict=True):
                np.testing.assert_array_equal(mine, its)
            found.clear()
            del mine, its


def test_what_is_not_whole_or_another_push_is_refused(slot):
    with pytest.raises(CorruptRecord, match="push 1"):
        slot.read(1)
    slot.write(1, of(100))
    with pytest.raises(CorruptRecord, match="got number 1"):
        slot.read(2)
    for place in (520, 700):
        slot.write(1, of(100))
        slot._segment.buffer[place] ^= 1
        with pytest.raises(CorruptRecord):
            slot.read(1)


def test_a_few_rows_are_whole_steps_and_end_in_a_cut():
    rows = rollout(agent("a2c"), length=16, width=4)
    few = fewest(rows, 5, set())
    assert few["valid"].shape == (2, 4)
    assert few["cut"][-1].all()
    assert not rows["cut"][1].any()
    assert fewest(rows, 1000, set())["valid"].shape == (16, 4)
    assert SPACES.actions == 3
