"""The discounted return of an episode is told beside its return, by the algorithm's discount, also after going on."""

from types import SimpleNamespace

import numpy as np
import pytest
from role_fakes import FakeAlgorithm, FakeTask
from test_executor_state import Summing

from mlxe_async.errors import ProtocolError
from mlxe_async.roles.discounted import Discounted
from mlxe_async.supervisor.handles.answers import is_rollout


class Discounting(FakeAlgorithm):
    settings = SimpleNamespace(discount=0.5)


@pytest.fixture
def make(monkeypatch):
    import test_executor

    monkeypatch.setattr(test_executor, "FakeAlgorithm", Discounting)
    return test_executor.make


def test_it_is_the_sum_of_rewards_by_powers_of_the_discount():
    rewards = np.random.default_rng(1).normal(size=(7, 3))
    found = Discounted(0.9, 3)
    for number, reward in enumerate(rewards):
        if number == 2:
            found.begin(1)
        found.add(reward)
    powers = 0.9 ** np.arange(7)
    expected = [powers @ rewards[:, 0], powers[:5] @ rewards[2:, 1], powers @ rewards[:, 2]]
    assert found.told(np.arange(3)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "has"),
    [({"discount": 1}, True), ({"discount": 0.0}, True), ({}, False), ({"discount": 2.0}, False), (None, False)],
)
def test_an_algorithm_without_a_discount_has_none(settings, has):
    algorithm = SimpleNamespace(settings=settings and SimpleNamespace(**settings))
    assert (Discounted.of(algorithm, 2) is not None) is has


def test_each_episode_has_its_own(make):
    executor, *_ = make(FakeTask([2, 3]), sync="rollout", rollout_steps=6)
    report = executor.generate(rollout=0)
    assert report["episodes"]["steps"] == [2, 3, 2, 2, 3]
    assert report["episodes"]["return"] == [2.0, 3.0, 2.0, 2.0, 3.0]
    assert report["episodes"]["discounted"] == [1.5, 1.75, 1.5, 1.5, 1.75]
    is_rollout(report, envs=2)
    with pytest.raises(ProtocolError, match="expected lists of one length"):
        is_rollout({**report, "episodes": {**report["episodes"], "discounted": [1.0]}}, envs=2)
    with pytest.raises(ProtocolError, match="discounted"):
        is_rollout({**report, "episodes": {**report["episodes"], "discounted": "1"}}, envs=2)


@pytest.mark.parametrize("is_known", [True, False], ids=["told", "of an older program"])
def test_another_executor_goes_on_with_it_or_says_that_it_is_not_known(make, is_known):
    import dataclasses

    first, *_ = make(Summing([8]), sync="rollout", rollout_steps=5)
    first.plan = dataclasses.replace(first.plan, records=True)
    first.generate(rollout=0)
    state = {name: array.copy() for name, array in first.state().items()}
    assert state["discounted"].tolist() == [1.9375]
    if not is_known:
        del state["discounted"]
    second, *_ = make(Summing([8]), sync="rollout", rollout_steps=5)
    second.restore(state)
    report = second.generate(rollout=1)
    assert report["episodes"]["discounted"] == [2 - 0.5**7 if is_known else None]
    assert report["episodes"]["return"] == [8.0]
    is_rollout(report, envs=1)
    second.generate(rollout=2)
    assert second.generate(rollout=3)["episodes"]["discounted"] == [2 - 0.5**7]
