"""What a worker pushes leads the learner to where the worker's own update leads, whatever rows the learner has."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlxe_async.algorithms import Clock
from mlxe_async.algorithms.state.backward import ExchangesGradients
from mlxe_async.errors import CorruptRecord, StepsDiffer
from mlxe_async.fast import updates
from mlxe_async.ipc.shared.pushes import Push, PushPlaces, least_bytes
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.maths import together
from mlxe_async.maths.normaliser import Moments
from mlxe_async.roles.best_score import Contender
from mlxe_async.roles.keeping import StateKeeper
from mlxe_async.roles.parameter_server import Given, moments_from_columns, moments_to_columns, put_together
from mlxe_async.roles.pushing import Pusher, Pushing, Recorder, fewest, fewest_samples
from mlxe_async.roles.worker import Followed, KeptElsewhere

sys.path += [str(Path(__file__).parents[1] / "fast"), str(Path(__file__).parent)]
from made_rows import SPACES, agent, rollout
from role_fakes import FakePage, FakeWeights
from test_keeping import Store
from test_team import CASES, IDS, SMALL, whole_batch

ROLLOUTS = {"a2c", "impala", "ppo", "reinforce"}
PUSHED = [pytest.param(*case, id=name) for case, name in zip(CASES, IDS, strict=True) if case[0] in ROLLOUTS]
REPLAYED = [pytest.param(*case, id=name) for case, name in zip(CASES, IDS, strict=True) if case[0] not in ROLLOUTS]

NOTHING_DRAWN = {"updates": 0}


@pytest.fixture
def places():
    with Segment.create("push", least_bytes(2), grows=True) as segment:
        yield PushPlaces(segment)


def rows_of(algorithm, seed=0):
    rows = rollout(algorithm, length=16, width=3, seed=seed)
    for column in algorithm.carry:
        rows[column.name] = np.random.default_rng(3).normal(size=3)
    return rows


def numbers(algorithm):
    return {name: np.array(array) for name, array in algorithm.state().items() if array.dtype.kind == "f"}


class Pushed:
    """A worker and where its pushes go."""

    def __init__(self, worker, places, *, fast, lane=0):
        self.worker, self.places, self.pushing = worker, places, Pushing(lane, 0)
        self.way = updates(worker, fast=fast)

    def by(self, rows, clock):
        """What it pushes that learns from these rows, read as the learner reads it."""
        twin = self.way.twin is not None
        with self.pushing.recording(self.worker, clock.updates + 1, twin=twin, updates=clock.updates) as recorder:
            together.learn_from(len(rows["weight"]) if "weight" in rows else rows["valid"].sum())
            self.way.update(rows, clock)
        self.places.write(1, clock.updates + 1, Push(recorder.entries, {}))
        return self.places.read(1, clock.updates + 1).entries


class Server:
    """A learner that steps by pushes, with rows of its own."""

    def __init__(self, learner, *, fast):
        self.learner, self.way, self.exchanges = learner, updates(learner, fast=fast), ExchangesGradients()

    def step(self, entries, rows, clock):
        self.step_by([entries], rows, clock)

    def step_by(self, pushes, rows, clock):
        if self.way.twin is None:
            self.exchanges.follow(self.learner)
        given = Given(pushes)
        with together.learning_in(given):
            self.way.update(rows, clock)
        given.expect_end()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("name", "spaces", "settings"), PUSHED)
def test_the_learner_comes_to_what_the_worker_comes_to_by_a_few_other_rows(places, name, spaces, settings, fast):
    worker, server = (agent(name, spaces=spaces, seed=seed, **settings) for seed in (1, 2))
    server.restore(worker.state())
    pushed, served = Pushed(worker, places, fast=fast), Server(server, fast=fast)
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


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("name", "spaces", "settings"), REPLAYED)
def test_of_replayed_rows_too_a_few_lead_where_all_do(places, name, spaces, settings, fast):
    worker, server = (agent(name, spaces=spaces, seed=seed, **settings) for seed in (1, 2))
    server.restore(worker.state())
    pushed, served = Pushed(worker, places, fast=fast), Server(server, fast=fast)
    for k in range(3):
        clock = Clock(env_steps=100 * (k + 1), episodes=k, updates=k, version=k)
        rows, parts = whole_batch(worker, k + 1)
        entries, before = pushed.by(rows, clock), numbers(server)
        few = fewest_samples(parts[-1], server.window)
        assert len(few["weight"]) <= 4
        served.step(entries, few, clock)
        mine, its = numbers(server), numbers(worker)
        assert mine.keys() == its.keys()
        for entry in mine:
            assert np.array_equal(mine[entry], its[entry]), entry
        assert any(not np.array_equal(mine[entry], before[entry]) for entry in mine)


def test_moments_go_with_the_rows_of_a_push():
    moments = Moments(np.arange(3.0), np.ones(3), 7.0)
    columns = {"reward": np.ones(2), **moments_to_columns(moments)}
    rows, found = moments_from_columns(columns)
    assert [*rows] == ["reward"]
    assert found.rows == 7.0
    np.testing.assert_array_equal(found.mean, moments.mean)
    np.testing.assert_array_equal(found.variance, moments.variance)
    assert moments_from_columns(rows) == (rows, None)


def test_one_worker_alone_learns_what_a_learner_learns(places):
    alone, worker = agent("a2c"), agent("a2c")
    rows = rows_of(alone)
    updates(alone, fast=False).update(rows, Clock())
    Pushed(worker, places, fast=False).by(rows, Clock())
    for name, array in numbers(alone).items():
        np.testing.assert_array_equal(numbers(worker)[name], array)


def test_a_push_of_other_steps_is_refused(places):
    entries = Pushed(agent("a2c"), places, fast=False).by(rows_of(agent("a2c")), Clock())
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
    with together.learning_in(Given([recorder.entries])):
        assert together.moments(np.array([7.0])) == (2.0, 1.0)
        assert together.mean(9.0, 1) == 5.0


def test_tables_of_workers_that_pushed_fewer_rows_count_as_0_below():
    pushed = []
    for table in ([[1.0, 10.0]], [[2.0, 20.0], [3.0, 30.0], [4.0, 40.0]]):
        recorder = Recorder()
        with together.learning_in(recorder):
            np.testing.assert_array_equal(together.total_by_row(table), table)
        pushed.append(recorder.entries)
    with together.learning_in(Given(pushed)):
        np.testing.assert_array_equal(together.total_by_row([[9.0, 9.0]] * 2), [[3, 30], [3, 30], [4, 40]])
    with together.learning_in(Given(pushed[:1])), pytest.raises(ValueError, match="could not broadcast"):
        together.total_by_row([[9.0, 9.0]] * 2)  # the learner's rows are some of those that were pushed


# -- the place in shared memory --


def of(*sizes):
    rng = np.random.default_rng(0)
    return [("gradient", rng.normal(size=size).astype(np.float32)) for size in sizes]


def same(one, other):
    return [kind for kind, _ in one.entries] == [kind for kind, _ in other.entries] and all(
        mine.dtype == its.dtype and np.array_equal(mine, its)
        for mine, its in zip(arrays_of(one), arrays_of(other), strict=True)
    )


def arrays_of(push):
    return [*(array for _, array in push.entries), *push.rows.values()]


def test_pushes_are_read_as_they_were_written_however_they_grow():
    with (
        Segment.create("push", least_bytes(3), grows=True) as segment,
        Segment.attach("push", os.dup(segment.fd)) as other,
    ):
        writer, reader, lie = PushPlaces(segment), PushPlaces(other), {}
        for number, sizes in enumerate([(3,), (1000, 5), (200_000, 1), (7,), (), (300_000,), (2, 2)], 1):
            place = number % 3
            rows = {"reward": np.full((2, number), number, np.float64), "cut": np.ones((2, 0), bool)}
            lie[place] = number, Push(of(*sizes), rows if number % 2 else {})
            writer.write(place, *lie[place])
            for at, (known, push) in lie.items():
                assert same(reader.read(at, known), push)


def test_what_is_not_whole_or_another_push_is_refused(places):
    with pytest.raises(CorruptRecord, match="push 1"):
        places.read(0, 1)
    places.write(0, 1, Push(of(100), {}))
    with pytest.raises(CorruptRecord, match="got number 1"):
        places.read(0, 2)
    with pytest.raises(CorruptRecord, match="got number 0"):
        places.read(1, 1)
    table = least_bytes(2)
    for changed in (table, table + 200, 128, 384, 512):  # the table, a number, the offset, sizes
        places.write(0, 1, Push(of(100), {}))
        places._segment.buffer[changed] ^= 1
        with pytest.raises(CorruptRecord):
            places.read(0, 1)
        places._segment.buffer[changed] ^= 1
    assert len(places.read(0, 1).entries) == 1


# -- several at once --


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("a2c", SMALL | {"optimiser": "rmsprop"}),
        ("a2c", SMALL | {"optimiser": "adam"}),
        ("impala", SMALL | {"optimiser": "rmsprop"}),
    ],
)
def test_the_mean_of_three_pushes_is_the_step_by_all_of_their_rows(places, name, settings, fast):
    server, alone = (agent(name, seed=4, **settings) for _ in range(2))
    whole, parts = whole_batch(alone, 3)
    pushes = []
    for lane, rows in enumerate(parts):
        worker = agent(name, seed=lane, **settings)
        worker.restore(server.state())
        pushes.append(Pushed(worker, places, fast=fast, lane=lane).by(rows, Clock()))
    before = numbers(server)
    Server(server, fast=fast).step_by(pushes, fewest(parts[-1], 1, set()), Clock())
    updates(alone, fast=fast).update(whole, Clock())
    for entry, array in numbers(alone).items():
        moved = np.abs(array - before[entry]).max()
        np.testing.assert_allclose(numbers(server)[entry], array, rtol=0, atol=1e-3 * moved + 1e-7, err_msg=entry)


def test_what_is_told_of_several_is_their_mean_by_rows():
    done = {
        "updates": 1,
        "late_rows": 0,
        "dropped_rollouts": 0,
        "finite": True,
        "lag_min": None,
        "lag_mean": None,
        "lag_max": 0,
    }
    one = {"version": 3, "done": {**done, "rows": 10, "dropped_rows": 1, "metrics": {"loss": 1.0, "kl": None}}}
    two = {"version": 5, "done": {**done, "rows": 30, "dropped_rows": 2, "metrics": {"loss": 3.0, "kl": 2.0}}}
    told = put_together([one, two], 6, {"compensation": 0.5})
    assert told["metrics"] == {"compensation": 0.5, "loss": 2.5, "kl": 2.0}
    assert (told["rows"], told["dropped_rows"], told["updates"]) == (40, 3, 1)
    assert (told["lag_min"], told["lag_mean"], told["lag_max"]) == (1, 1.5, 3)


def test_a_few_rows_are_whole_steps_and_end_in_a_cut():
    rows = rollout(agent("a2c"), length=16, width=4)
    few = fewest(rows, 5, set())
    assert few["valid"].shape == (2, 4)
    assert few["cut"][-1].all()
    assert not rows["cut"][1].any()
    assert fewest(rows, 1000, set())["valid"].shape == (16, 4)
    assert SPACES.actions == 3


# -- the state that a worker goes on from --


def test_a_worker_goes_on_from_no_state_that_is_kept_but_not_yet_published():
    learner, weights = agent("a2c"), FakeWeights(4)
    weights.flat = learner.weights()
    store = Store()
    StateKeeper(store, learner).keep(4, 3, roll_backs=0, call=0, answer={})
    StateKeeper(store, learner).keep(5, 4, roll_backs=0, call=0, answer={})  # killed or slow before it publishes
    worker = Pusher(
        weights,
        len(weights.flat),
        algorithm=agent("a2c", seed=2),
        memory=SimpleNamespace(kind="rollouts", share=lambda *part: None),
        weights=Followed(),
        page=FakePage(),
        update_timeout_s=5.0,
        store=KeptElsewhere(store.find),
        team=Pushing(0, 0),
        acted=lambda: (4, weights.flat),
        places=None,
    )
    pushed = worker.differentiate(NOTHING_DRAWN, number=1, place=0, env_steps=0, episodes=0, updates=0)
    assert (pushed["version"], pushed["state"]) == (4, 4)
    weights.version = 5
    pushed = worker.differentiate(NOTHING_DRAWN, number=2, place=0, env_steps=0, episodes=0, updates=0)
    assert (pushed["version"], pushed["state"]) == (4, 5)


class OfVersionFive:
    """A memory of one rollout that version 5 played."""

    kind = "rollouts"

    def __init__(self, algorithm):
        self.rows, self.handed = rows_of(algorithm), 0
        self.rows["version"] = np.full(self.rows["valid"].shape, 5)

    def share(self, *part):
        pass

    def rows_of(self, plan):
        return int(self.rows["valid"].sum())

    def gather(self, plan, bound):
        if bound is not None and bound > 5:
            return {}, 1
        self.handed += 1
        return self.rows, 0


@pytest.mark.parametrize(("kind", "more"), [(Pusher, {}), (Contender, {"adopt": lambda flat: None})])
def test_in_a_life_that_has_not_acted_yet_no_rollout_is_learned_from(kind, more):
    learner = agent("a2c")
    weights, store = FakeWeights(5), Store()
    weights.flat = learner.weights()
    StateKeeper(store, learner).keep(5, 3, roll_backs=0, call=0, answer={})
    acting, memory = agent("a2c", seed=2), OfVersionFive(learner)
    worker = kind(
        weights,
        len(weights.flat),
        algorithm=acting,
        memory=memory,
        weights=Followed(),
        page=FakePage(),
        update_timeout_s=5.0,
        store=KeptElsewhere(store.find),
        team=Pushing(0, 0),
        acted=lambda: (0, np.zeros_like(weights.flat)),
        places=None,
        **more,
    )
    pushed = worker.differentiate({"updates": 1}, number=1, place=0, env_steps=0, episodes=0, updates=0)
    assert (pushed["done"]["updates"], pushed["nbytes"], memory.handed) == (0, 0, 0)
