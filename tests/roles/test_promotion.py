"""Promote best: results belong to versions, and without a better one for a while the learner goes back."""

import numpy as np
import pytest
from role_fakes import LAYOUT, FakeAlgorithm, FakePage, FakeWeights
from test_memorizer_learner import COUNTS, filled_lane, learner_of, memorizer_of

from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.roles.learner import Learner
from mlxe_async.roles.promotion import REMARKS, OnlinePromotion, Promotion, remarked


def flat(value):
    return np.full(3, value, np.float32)


def test_after_so_many_iterations_without_a_better_result_it_is_time_to_go_back():
    """Results 5, 7, 7, 3, 6: the second is the best, and three later ones are none better."""
    shelf = FakeWeights(version=0, size=3 + REMARKS)
    promotion = Promotion(3, shelf)
    assert promotion.best is None
    told = [promotion.judge(result, version, flat(version)) for version, result in enumerate((5, 7, 7, 3, 6), 1)]
    assert told == [None] * 4 + [{"best_version": 2, "result": 7.0, "iterations": 3}]
    assert promotion.best.tolist() == [2, 2, 2]


def test_after_going_back_patience_begins_anew_and_a_better_result_takes_the_place():
    promotion = Promotion(2, FakeWeights(version=0, size=3 + REMARKS))
    results = (9, 1, 1, 1, 12, 1, 1)
    told = [promotion.judge(result, version, flat(version)) for version, result in enumerate(results, 1)]
    assert [bool(back) for back in told] == [False, False, True, False, False, False, True]
    assert told[2]["best_version"] == 1
    assert told[6] == {"best_version": 5, "result": 12.0, "iterations": 2}


def test_a_successor_goes_on_counting():
    shelf = FakeWeights(version=0, size=3 + REMARKS)
    promotion, told = Promotion(2, shelf), []
    for version, result in enumerate((9, 1, 1), 1):
        told.append(promotion.judge(result, version, flat(version)))
        promotion = Promotion(2, shelf, shelf.flat.copy())
    assert told == [None, None, {"best_version": 1, "result": 9.0, "iterations": 2}]
    assert promotion.best.tolist() == [1, 1, 1]


@pytest.mark.parametrize("result", [-1e300, 1e300, float("-inf")])
def test_a_result_that_float32_cannot_hold_is_kept_as_the_nearest_that_it_can(result):
    shelf = FakeWeights(version=0, size=3 + REMARKS)
    Promotion(1, shelf).judge(result, 1, flat(1))
    assert np.isfinite(shelf.flat).all()


def promoting_learner(patience, episodes=8):
    """A learner whose updates add 1, so that version v is all v - 1."""
    algorithm = FakeAlgorithm(updates_due=1)
    memorizer = memorizer_of([filled_lane(episodes=episodes)], algorithm=algorithm)
    shelf = FakeWeights(version=0, size=3 + REMARKS)
    learner, weights = learner_of(memorizer, algorithm, promotion=Promotion(patience, shelf))
    learner.publish()
    return learner, weights, memorizer, shelf


def test_the_learner_goes_back_to_the_weights_that_were_played_and_learns_on_from_there():
    learner, weights, memorizer, _ = promoting_learner(2)
    seen = []
    for progress in (10.0, 30.0, 20.0, 25.0, None):
        done = learner.learn(memorizer.memorize(most_updates=1), **COUNTS, progress=progress)
        seen.append((done["version"], float(weights.flat[0]), done["set_back"]))
    # Version 2 (all 1) was played with result 30; after two worse ones the fourth update starts there: 1 + 1.
    back = {"best_version": 2, "result": 30.0, "iterations": 2}
    assert seen == [(2, 1.0, None), (3, 2.0, None), (4, 3.0, None), (5, 2.0, back), (6, 3.0, None)]


def test_an_iteration_without_a_result_is_not_counted():
    learner, _, memorizer, _ = promoting_learner(1)
    for progress in (10.0, None, None, None):
        assert learner.learn(memorizer.memorize(most_updates=1), **COUNTS, progress=progress)["set_back"] is None


def test_without_promotion_results_change_nothing():
    algorithm = FakeAlgorithm(updates_due=1)
    memorizer = memorizer_of([filled_lane(episodes=4)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm)
    learner.publish()
    for progress in (10.0, 1.0, 1.0):
        assert learner.learn(memorizer.memorize(most_updates=1), **COUNTS, progress=progress)["set_back"] is None
    assert weights.flat.tolist() == [3, 3, 3]


def test_a_successor_of_the_learner_goes_back_to_what_its_predecessor_found():
    learner, weights, memorizer, shelf = promoting_learner(2)
    for progress in (30.0, 20.0):
        learner.learn(memorizer.memorize(most_updates=1), **COUNTS, progress=progress)
    successor = Learner(
        algorithm=FakeAlgorithm(updates_due=1),
        memory=memorizer.memory,
        weights=weights,
        page=FakePage(),
        update_timeout_s=9.0,
        last_good=weights.flat.copy(),
        promotion=Promotion(2, shelf, shelf.flat.copy()),
    )
    done = successor.learn(memorizer.memorize(most_updates=1), **COUNTS, progress=1.0)
    assert done["set_back"] == {"best_version": 1, "result": 30.0, "iterations": 2}
    assert weights.flat.tolist() == [1, 1, 1]


def test_rollouts_of_the_policy_that_is_given_up_are_dropped_and_the_best_version_is_published_again():
    shape = RolloutShape(1, 1, 4, 8, LAYOUT.to_json())
    memory = RolloutMemory(shape, bytearray(shape.nbytes))
    algorithm, weights = FakeAlgorithm(updates_due=1), FakeWeights(version=0)
    learner = Learner(
        algorithm=algorithm,
        memory=memory,
        weights=weights,
        page=FakePage(),
        update_timeout_s=9.0,
        promotion=Promotion(1, FakeWeights(version=0, size=3 + REMARKS)),
    )
    learner.publish()
    told = []
    for sequence, progress in enumerate((30.0, 20.0)):
        rows = LAYOUT.empty(2)
        rows["version"][:], rows["env"][:], rows["last"][:] = weights.version, 0, [0, 1]
        memory.ingest(0, sequence, 1, rows, None, drop_open=False)
        plan = memory.draw(1)
        told.append(learner.learn(plan, **COUNTS, progress=progress))
        memory.settle(plan)
    assert [done["updates"] for done in told] == [1, 0]
    assert [done["dropped_rollouts"] for done in told] == [0, 1]
    assert [done["version"] for done in told] == [2, 3]
    assert weights.flat.tolist() == [0, 0, 0]


class Shelf:
    """What executors put aside, and the learner takes."""

    def __init__(self):
        self.lies = None

    def put(self, vector):
        self.lies = vector

    def take(self):
        return None if self.lies is None else self.lies.copy()


def test_where_others_judge_the_learner_goes_back_to_what_lies_on_the_shelf():
    algorithm, shelf = FakeAlgorithm(updates_due=1), Shelf()
    memorizer = memorizer_of([filled_lane(episodes=8)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm, promotion=OnlinePromotion(shelf.put, shelf.take))
    learner.publish()
    assert learner.learn(memorizer.memorize(most_updates=1), **COUNTS, iterations=4)["set_back"] is None
    shelf.put(remarked(flat(40), 30.0, 1))
    assert learner.learn(memorizer.memorize(most_updates=1), **COUNTS)["set_back"] is None
    done = learner.learn(memorizer.memorize(most_updates=1), **COUNTS, iterations=5)
    assert done["set_back"] == {"best_version": 1, "result": 30.0, "iterations": 5}
    assert weights.flat.tolist() == [41, 41, 41]  # one update after it went back
    assert learner.state()["promotion"].tolist() == [40, 40, 40, 30, 1, 0]


def test_a_restarted_learner_leaves_on_the_shelf_what_is_newer_and_a_resumed_run_finds_it_again():
    shelf = Shelf()
    promotion = OnlinePromotion(shelf.put, shelf.take)
    promotion.go_on(None)
    assert (promotion.best, promotion.taken_back(3)) == (None, None)
    promotion.go_on(remarked(flat(1), 10.0, 1))
    promotion.go_on(remarked(flat(2), 20.0, 2))
    assert promotion.best.tolist() == [1, 1, 1]
