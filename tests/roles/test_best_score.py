"""Networks with a score: the learner takes over those whose score is the highest so far, score and weights at once."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from role_fakes import FakeAlgorithm, FakePage, FakeWeights
from test_keeping import Store

from mlxe_async.errors import CorruptRecord
from mlxe_async.roles.best_score import SCORE, WEIGHTS, BestScore
from mlxe_async.roles.parameter_server import STEP
from mlxe_async.roles.promotion import Score

DONE = {"updates": 1, "rows": 20, "lag_min": 0, "lag_mean": 0.0, "lag_max": 0, "late_rows": 0, "dropped_rollouts": 0}
DONE |= {"dropped_rows": 0, "metrics": {}, "finite": True}
COUNTS = {"env_steps": 20, "episodes": 1, "updates": 1}


class Network(FakeAlgorithm):
    def weights(self):
        return self.flat.copy()

    def set_weights(self, flat):
        self.flat = flat.copy()

    def state(self):
        return {"flat": self.flat.copy()}

    def restore(self, state):
        self.flat = state["flat"].copy()


class Offers:
    """The place of a worker: what is offered by number."""

    def __init__(self):
        self.there = {}

    def read(self, place, number):
        if number not in self.there:
            raise CorruptRecord("half")
        return self.there[number], {}


class Dying(FakeWeights):
    """Dies before, or after, the publication of a version."""

    def __init__(self, at, when):
        super().__init__(0)
        self.at, self.when = at, when

    def publish(self, vector):
        if self.when == "before" and self.version + 1 == self.at:
            raise KeyboardInterrupt
        found = super().publish(vector)
        if self.when == "after" and found == self.at:
            raise KeyboardInterrupt
        return found


def learner_of(offers, weights, store, *, last_good=None):
    memory = SimpleNamespace(kind="rollouts")
    how = {"page": FakePage(), "update_timeout_s": 5.0, "keep_every": 1, "store": store, "last_good": last_good}
    return BestScore([offers], score=Score(), algorithm=Network(), memory=memory, weights=weights, **how)


def offered(learner, offers, number, score, *, value=None, call=None):
    vector = np.full(3, score if value is None else value, np.float32)
    offers.there[number] = [(WEIGHTS, vector), (SCORE, np.array([score]))]
    about = {"worker": 0, "number": number, "place": 0, "version": 1, "few": True, "done": DONE}
    return learner.learn(STEP, pushes=[about], call=number + 1 if call is None else call, **COUNTS)


def scene(weights=None):
    offers, weights, store = Offers(), weights or FakeWeights(0), Store()
    learner = learner_of(offers, weights, store)
    learner.publish(call=1)
    return learner, offers, weights, store


def test_the_first_network_is_promoted_however_bad_and_then_only_better_ones():
    learner, offers, weights, _ = scene()
    promoted = []
    for number, score in enumerate((-4.6, -9.0, -4.6, -4.5, 3.0, 2.9, 3.0), 1):
        done = offered(learner, offers, number, score)
        if done["updates"]:
            promoted.append((score, done["version"], float(weights.flat[0])))
        assert done["metrics"] == {"score": score}
    assert promoted == [(-4.6, 2, pytest.approx(-4.6)), (-4.5, 3, -4.5), (3.0, 4, 3.0)]


@pytest.mark.parametrize("score", [math.nan, -math.inf])
def test_a_score_that_is_none_promotes_nothing(score):
    learner, offers, weights, _ = scene()
    assert offered(learner, offers, 1, score, value=7.0)["updates"] == 0
    assert weights.version == 1


def test_weights_that_are_not_finite_are_not_promoted_and_leave_the_best_score_as_it_was():
    learner, offers, weights, _ = scene()
    assert offered(learner, offers, 1, 5.0, value=math.inf)["updates"] == 0
    assert offered(learner, offers, 2, 4.0)["updates"] == 1
    assert weights.flat.tolist() == [4.0, 4.0, 4.0]


def test_asked_again_it_answers_alike_and_promotes_nothing_twice():
    learner, offers, weights, _ = scene()
    first = offered(learner, offers, 1, 1.0, call=7)
    assert offered(learner, offers, 1, 1.0, call=7) == first
    assert weights.version == 2


def test_half_an_offer_is_none():
    learner, *_ = scene()
    with pytest.raises(CorruptRecord):
        learner.learn(STEP, pushes=[{"worker": 0, "number": 3, "place": 0}], call=9, **COUNTS)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_successor_has_the_score_of_the_weights_that_are_published(when):
    """Dead before the publication the score is the old one, and the same offer wins again; else it is the new one."""
    learner, offers, weights, store = scene(Dying(3, when))
    offered(learner, offers, 1, 1.0)
    with pytest.raises(KeyboardInterrupt):
        offered(learner, offers, 2, 5.0)
    good = weights.flat.copy()
    heir = learner_of(offers, alive := FakeWeights(weights.version), store, last_good=good)
    alive.flat = good
    done = offered(heir, offers, 2, 5.0)
    assert (done["version"], alive.flat.tolist()) == (3, [5.0, 5.0, 5.0] if when == "before" else good.tolist())
    assert offered(heir, offers, 3, 4.0)["updates"] == 0
    assert offered(heir, offers, 4, 6.0)["updates"] == 1


def test_what_a_run_knew_of_promotions_of_another_kind_is_no_score():
    """It began with `learner.promote_best`, whose shelf has the weights and three numbers."""
    _, offers, weights, _ = scene()
    heir = learner_of(offers, FakeWeights(weights.version), Store(), last_good=weights.flat.copy())
    state = heir.state()
    heir.restore({**state, "promotion": np.full(6, 9.0, np.float32)})
    assert offered(heir, offers, 1, -3.0)["updates"] == 1


def test_a_resumed_run_goes_on_with_the_best_score():
    learner, offers, weights, _ = scene()
    offered(learner, offers, 1, 5.0)
    heir = learner_of(offers, FakeWeights(weights.version), Store(), last_good=weights.flat.copy())
    heir.restore(learner.state())
    assert offered(heir, offers, 2, 4.0)["updates"] == 0
    assert offered(heir, offers, 3, 6.0)["updates"] == 1
