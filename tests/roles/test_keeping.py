"""A learner's successor, and a learner that steps back, go on with all state of the version they go on from."""

import contextlib
import json

import numpy as np
import pytest
from role_fakes import LAYOUT, FakeAlgorithm, FakeLane, FakeWeights
from test_executor import BLOCK
from test_memorizer_learner import COUNTS, filled_lane, learner_of, memorizer_of

from mlxe_async.errors import NumericError
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.roles.keeping import ANSWER_BYTES, StateKeeper
from mlxe_async.roles.memorizer import Memorizer, MemorizerPlan
from mlxe_async.roles.promotion import Promotion


class Store:
    """Keeps the two newest in a list."""

    def __init__(self):
        self.kept = []

    def keep(self, label, arrays, *, spare=None):
        self.kept = [one for one in self.kept if one[0] == spare][-1:]
        self.kept.append((label, {name: np.array(array) for name, array in arrays.items()}))

    def find(self, most):
        fit = [one for one in self.kept if one[0] <= most]
        return max(reversed(fit), key=lambda one: one[0]) if fit else None


class Remembers(FakeAlgorithm):
    """Each update adds what the updates so far were, which is not in the weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.moment, self.fresh = 0.0, 0

    def update(self, batch, clock):
        self.moment += 1.0
        answer = super().update(batch, clock)
        self.flat = self.flat + self.moment
        return answer

    def set_weights(self, flat):
        super().set_weights(flat)
        self.moment, self.fresh = 0.0, self.fresh + 1

    def state(self):
        return {"flat": self.flat.copy(), "moment": np.array(self.moment)}

    def restore(self, state):
        self.flat, self.moment = state["flat"].copy(), float(state["moment"])


class GoesOnAround(Remembers):
    def restore_around(self, flat, state):
        self.restore({**state, "flat": flat})


def scene(kind=Remembers, episodes=8, **more):
    algorithm, store = kind(updates_due=1), Store()
    memorizer = memorizer_of([filled_lane(episodes=episodes)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm, store=store, **more)
    learner.publish(call=1)
    return learner, weights, store, memorizer


def successor_of(learner, weights, store, **more):
    algorithm = type(learner.algorithm)()
    good = weights.flat.copy()
    return learner_of(learner, algorithm, weights, store=store, last_good=good, **more)[0]


def test_a_successor_goes_on_exactly_where_the_last_publication_was():
    plain, _, _, memorizer = scene()
    plans = [memorizer.memorize(most_updates=1) for _ in range(5)]
    norms = [plain.learn(plan, **COUNTS)["norm"] for plan in plans]
    learner, weights, store, _ = scene()
    found = []
    for number, plan in enumerate(plans):
        found.append(learner.learn(plan, **COUNTS, call=number + 2)["norm"])
        learner = successor_of(learner, weights, store)
        assert learner.behind == 0
    assert found == norms
    assert learner.algorithm.fresh == 0


def test_the_state_is_there_before_the_version_is():
    learner, weights, store, memorizer = scene()
    seen = []
    publish = weights.publish
    weights.publish = lambda flat: seen.append(store.kept[-1][0]) or publish(flat)
    learner.learn(memorizer.memorize(most_updates=1), **COUNTS)
    assert seen == [2]
    assert store.kept[0][0] == 1


def test_state_of_a_version_that_was_not_published_is_not_taken_up():
    learner, weights, store, memorizer = scene()

    def killed(_flat):
        raise KeyboardInterrupt

    weights.publish = killed
    with pytest.raises(KeyboardInterrupt):
        learner.learn(memorizer.memorize(most_updates=1), **COUNTS)
    assert store.kept[-1][0] == 2
    after = successor_of(learner, weights, store)
    assert (after.behind, after.algorithm.moment) == (0, 0.0)


def test_a_call_that_is_repeated_is_answered_without_learning_again():
    learner, weights, store, memorizer = scene()
    first = learner.publish(call=1)
    plan = memorizer.memorize(most_updates=1)
    answer = learner.learn(plan, **COUNTS, call=2)
    for asked in (learner, successor_of(learner, weights, store)):
        again = json.loads(json.dumps(asked.learn(plan, **COUNTS, call=2)))
        times = ("seconds", "publish_seconds")
        assert {n: v for n, v in again.items() if n not in times} == {n: answer[n] for n in answer if n not in times}
        assert set(again) == set(answer)
    assert weights.version == 2
    assert asked.learn(memorizer.memorize(most_updates=1), **COUNTS, call=3)["version"] == 3
    assert first["version"] == 1


def test_an_answer_with_more_metrics_than_there_is_room_for_is_kept_without_them():
    learner, weights, store, memorizer = scene()
    plan = memorizer.memorize(most_updates=1)
    metrics = {f"metric {k}": 1.0 for k in range(ANSWER_BYTES // 10)}
    learner.algorithm.update = lambda batch, clock: (metrics, None)
    answer = learner.learn(plan, **COUNTS, call=2)
    again = successor_of(learner, weights, store).learn(plan, **COUNTS, call=2)
    assert answer["metrics"]
    assert (again["metrics"], again["version"]) == ({}, 2)


@pytest.mark.parametrize(("kind", "behind", "moment"), [(Remembers, None, 0.0), (GoesOnAround, 2, 3.0)])
def test_state_older_than_the_weights_is_gone_on_with_where_the_algorithm_can(kind, behind, moment):
    learner, weights, store, memorizer = scene(kind, keep_every=3)
    for _ in range(5):
        learner.learn(memorizer.memorize(most_updates=1), **COUNTS)
    assert ([label for label, _ in store.kept], weights.version) == ([4], 6)
    after = successor_of(learner, weights, store)
    assert after.algorithm.flat.tolist() == weights.flat.tolist()
    assert (after.behind, after.algorithm.moment) == (behind, moment)


def test_an_algorithm_without_state_goes_on_from_its_weights():
    learner, weights, store, memorizer = scene(FakeAlgorithm)
    learner.learn(memorizer.memorize(most_updates=1), **COUNTS, call=2)
    after = successor_of(learner, weights, store)
    assert after.behind is None
    assert after.algorithm.flat.tolist() == weights.flat.tolist()
    assert after.learn({}, **COUNTS, call=2)["version"] == 2


def test_a_step_back_restores_all_state_the_first_time_and_then_only_the_weights():
    learner, weights, _, memorizer = scene()
    learner.learn(memorizer.memorize(most_updates=1), **COUNTS)
    algorithm, good = learner.algorithm, weights.flat.copy()
    algorithm._step = np.nan
    moments = []
    for _ in range(3):
        assert learner.learn(memorizer.memorize(most_updates=1), **COUNTS)["rolled_back"]
        assert algorithm.flat.tolist() == good.tolist()
        moments.append(algorithm.moment)
    assert moments == [1.0, 0.0, 0.0]
    with pytest.raises(NumericError, match="4 times in a row"):
        learner.learn(memorizer.memorize(most_updates=1), **COUNTS)


def test_state_that_is_not_finite_itself_is_not_gone_back_to():
    learner, _, store, memorizer = scene()
    learner.learn(memorizer.memorize(most_updates=1), **COUNTS)
    store.kept[-1][1]["algorithm.moment"][...] = np.inf
    learner.algorithm._step = np.nan
    learner.learn(memorizer.memorize(most_updates=1), **COUNTS)
    assert learner.algorithm.moment == 0.0


def test_steps_back_are_counted_on_by_a_successor_which_repeats_none():
    learner, weights, store, memorizer = scene()
    for number in range(2, 5):
        plan = memorizer.memorize(most_updates=1)
        learner.algorithm._step = np.nan
        answer = learner.learn(plan, **COUNTS, call=number)
        learner = successor_of(learner, weights, store)
        assert learner.learn(plan, **COUNTS, call=number) == answer
        assert answer["rolled_back"]
    learner.algorithm._step = np.nan
    with pytest.raises(NumericError, match="4 times in a row"):
        learner.learn(memorizer.memorize(most_updates=1), **COUNTS, call=9)


def test_a_successor_judges_no_result_twice():
    def promotion(kept=None):
        return Promotion(2, FakeWeights(size=6), kept)

    learner, weights, store, memorizer = scene(promotion=promotion())
    learner.learn(memorizer.memorize(most_updates=1), **COUNTS, progress=9.0, call=2)
    for number in (3, 4):
        plan = memorizer.memorize(most_updates=1)
        publish, weights.publish = weights.publish, lambda _flat: 1 / 0
        with pytest.raises(ZeroDivisionError):
            learner.learn(plan, **COUNTS, progress=1.0, call=number)
        weights.publish = publish
        learner = successor_of(learner, weights, store, promotion=promotion(learner._promotion.kept))
        answer = learner.learn(plan, **COUNTS, progress=1.0, call=number)
        assert (answer["set_back"] is not None) == (number == 4)


def test_where_it_may_be_left_out_keeping_takes_a_hundredth_of_the_time():
    now = [0.0]

    class Slow(Store):
        def keep(self, label, arrays, *, spare=None):
            now[0] += 0.02
            super().keep(label, arrays, spare=spare)

    keeper, kept = StateKeeper(Slow(), Remembers(), 0, clock=lambda: now[0]), []
    for version in range(1, 1001):
        if keeper.is_due(version):
            keeper.keep(version, version - 1, roll_backs=0, call=0, answer={})
            kept.append(version)
        now[0] += 0.1
    assert kept[:3] == [1, 21, 41]
    assert 0.02 * len(kept) <= 0.011 * now[0]


def test_without_a_place_nothing_is_kept():
    keeper = StateKeeper(None, Remembers())
    assert not keeper.is_due(1)
    keeper.keep(1, 0, roll_backs=0, call=0, answer={})
    assert keeper.find(1) is None


class Counts(FakeAlgorithm):
    """Owes an update for each third segment, remainders kept."""

    rest = 0

    def updates_due(self, *, rows, new_rows, new_segments):
        due, self.rest = divmod(self.rest + new_segments, 3)
        return due

    def state(self):
        return {"rest": np.array(self.rest)}

    def restore(self, state):
        self.rest = int(state["rest"])


class Killed(BaseException):
    pass


def dies(*_args, **_kwargs):
    raise Killed


@pytest.mark.parametrize("moment", ["keep", "begin_phase", "draw", "answer"])
def test_a_memorizer_that_is_killed_counts_and_draws_as_if_it_had_not_been(moment, monkeypatch):
    plain, lane, store = FakeLane(BLOCK), FakeLane(BLOCK), Store()
    undisturbed, memorizer = memorizer_of([plain], algorithm=Counts()), memorizer_of([lane], algorithm=Counts())
    memorizer._store = store
    found, deaths = [], 0
    for call in range(1, 8):
        for one in (plain, lane):
            one.blocks += filled_lane(episodes=2).blocks
        with monkeypatch.context() as patched, contextlib.suppress(Killed):
            patched.setattr(store if moment == "keep" else memorizer.memory, moment, dies, raising=moment != "answer")
            memorizer.memorize(call=call)
            deaths -= moment != "answer"  # there was nothing to be drawn
        deaths += 1
        shape, buffer = memorizer.memory.shape, memorizer.memory._buffer
        plan = MemorizerPlan(seed=0, block_rows=BLOCK, redo=False, rollouts_per_update=1, plan_updates=8)
        known = {"memory": ReplayMemory(shape, buffer), "layout": LAYOUT, "lanes": [lane], "store": store}
        memorizer = Memorizer(plan, algorithm=Counts(), **known)
        found.append((undisturbed.memorize(call=call), memorizer.memorize(call=call)))
    for name in ("slot", "updates", "rows", "owed", "held"):
        assert [one[name] for one, _ in found] == [other[name] for _, other in found], name
    assert sum(plan["updates"] for plan, _ in found) == 14 // 3
    assert deaths >= 4
