"""Testing frozen versions: when a version passes, what a verdict says, and in which order verdicts come."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from evaluator_fakes import Constant, Corridor, Linear

from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.roles.evaluator import Evaluator, Rules
from mlxe_async.rows import Spaces

CARTPOLE = {"env": "CartPole-v1", "max_episode_steps": 500, "shaped_reward": True, "adverse_starts": True}
CAP = {"rule": "cap"}
SHORT = {**CAP, "max_episode_steps": 3_000, "screen_steps": 200}
NARROW = np.array([0.1, 0.3, 1.0, 0.0], np.float32)  # falls after some hundreds of steps


def decided(evaluator):
    verdicts = []
    while evaluator.in_flight:
        verdicts += evaluator.advance(60.0)
    return verdicts


def story(verdict):
    """A verdict without its clock."""
    return {**vars(verdict), "seconds": 0}


@pytest.mark.long
def test_the_known_linear_policy_stands_for_fifty_thousand_steps_from_all_twenty_restarts():
    evaluator = Evaluator(Linear(), CARTPOLE, CAP)
    evaluator.add(7, Linear.BALANCED)
    (verdict,) = decided(evaluator)
    assert (verdict.version, verdict.passed, verdict.failed_at) == (7, True, None)
    assert (verdict.episodes, verdict.steps) == (20, 1_000_000)
    assert (verdict.return_min, verdict.return_mean) == (50_000, 50_000)
    assert verdict.seconds > 0


def gymnasium_lengths(weights, cap, seeds):
    lengths = []
    for seed in seeds:
        env = gymnasium.make("CartPole-v1").unwrapped
        obs, _ = env.reset(seed=seed)
        for length in range(1, cap + 1):  # noqa: B007 - the last one is the result
            obs, _, terminated, _, _ = env.step(int(obs @ weights > 0))
            if terminated:
                break
        lengths.append(length)
    return lengths


@pytest.mark.parametrize("weights", [Linear.ALWAYS_LEFT, NARROW, np.array([0, 0, 1.0, 0], np.float32)])
def test_a_failure_is_found_in_the_step_in_which_gymnasium_has_the_first_fall(weights):
    evaluator = Evaluator(Linear(), CARTPOLE, SHORT)
    evaluator.add(1, weights)
    (verdict,) = decided(evaluator)
    first = min(gymnasium_lengths(weights, 3_000, evaluator.rules.seeds))
    assert (verdict.passed, verdict.failed_at, verdict.return_min) == (False, first, first)
    assert verdict.steps == 20 * first


@pytest.mark.parametrize("weights", [Linear.ALWAYS_LEFT, NARROW, Linear.BALANCED])
def test_the_mean_return_is_gymnasiums(weights):
    rules = {"rule": "mean_return", "threshold": 100.0, "max_episode_steps": 500, "episodes": 7, "screen_steps": 90}
    evaluator = Evaluator(Linear(), CARTPOLE, rules)
    evaluator.add(1, weights)
    (verdict,) = decided(evaluator)
    lengths = gymnasium_lengths(weights, 500, evaluator.rules.seeds)
    assert (verdict.return_min, verdict.return_mean, verdict.steps) == (min(lengths), np.mean(lengths), sum(lengths))
    assert verdict.passed == (np.mean(lengths) >= 100)


def test_a_fall_in_the_last_step_before_the_cap_is_a_failure():
    seeds = Rules.from_mapping(SHORT).seeds
    first = min(gymnasium_lengths(Linear.ALWAYS_LEFT, 100, seeds))
    for cap, passed in ((first - 1, True), (first, False)):
        evaluator = Evaluator(Linear(), CARTPOLE, {**CAP, "max_episode_steps": cap})
        evaluator.add(1, Linear.ALWAYS_LEFT)
        assert decided(evaluator)[0].passed == passed


def test_restarts_are_the_same_for_every_evaluator_and_differ_with_the_seed():
    assert Rules().seeds == Rules().seeds
    assert len(set(Rules().seeds)) == 20
    assert Rules(seed=1).seeds != Rules().seeds
    assert Rules(episodes=30).seeds[:20] == Rules().seeds


def test_verdicts_come_in_the_order_in_which_versions_were_added():
    evaluator = Evaluator(Linear(), CARTPOLE, SHORT)
    weights = [Linear.BALANCED, Linear.ALWAYS_LEFT, Linear.BALANCED, NARROW, Linear.BALANCED, Linear.ALWAYS_LEFT]
    for version, flat in enumerate(weights):
        evaluator.add(version, flat)
    verdicts = decided(evaluator)
    assert [verdict.version for verdict in verdicts] == list(range(6))
    assert [verdict.passed for verdict in verdicts] == [True, False, True, False, True, False]


def test_a_test_gives_the_same_verdict_alone_and_among_others():
    weights = [NARROW, Linear.BALANCED, Linear.ALWAYS_LEFT, np.array([0.1, 0.2, 1.0, 0.1], np.float32)]
    together = Evaluator(Linear(), CARTPOLE, SHORT)
    alone = []
    for version, flat in enumerate(weights):
        together.add(version, flat)
        single = Evaluator(Linear(), CARTPOLE, SHORT)
        single.add(version, flat)
        alone += decided(single)
    assert [story(verdict) for verdict in decided(together)] == [story(verdict) for verdict in alone]


def test_a_network_gives_the_same_bits_alone_and_among_others():
    """The last bit decides where an unstable policy falls: mean returns would tell."""
    policy, spaces = MLxESettings(policy=(64, 64)), Spaces((4,), actions=2)
    made = [MLxE(policy, spaces, seed=seed, learns=False) for seed in range(6)]
    rules = {**SHORT, "rule": "mean_return", "max_episode_steps": 1_000}
    together = Evaluator(made[0], CARTPOLE, rules)
    alone = []
    for version, one in enumerate([each.weights() for each in made]):
        together.add(version, one)
        single = Evaluator(made[0], CARTPOLE, rules)
        single.add(version, one)
        alone += decided(single)
    assert [story(verdict) for verdict in decided(together)] == [story(verdict) for verdict in alone]


def test_versions_added_while_a_test_is_under_way_change_nothing_in_it():
    evaluator = Evaluator(Linear(), CARTPOLE, SHORT)
    evaluator.add(0, Linear.BALANCED)
    verdicts = []
    for version in range(1, 12):
        verdicts += evaluator.advance(0.0)
        evaluator.add(version, NARROW if version % 2 else Linear.BALANCED)
    verdicts += decided(evaluator)
    assert [verdict.passed for verdict in verdicts] == [version % 2 == 0 for version in range(12)]
    assert len({verdict.failed_at for verdict in verdicts}) == 2


def test_the_screen_sees_new_versions_together_and_the_long_tests_only_those_it_let_through():
    policy = Linear()
    evaluator = Evaluator(policy, CARTPOLE, SHORT)
    for version, flat in enumerate([Linear.BALANCED, Linear.ALWAYS_LEFT, Linear.BALANCED]):
        evaluator.add(version, flat)
    decided(evaluator)
    assert policy.batches[0] == (3, 20, 4)
    assert set(policy.batches[200:]) == {(2, 20, 4)}


def test_no_more_versions_than_allowed_share_a_batch():
    policy = Linear()
    evaluator = Evaluator(policy, CARTPOLE, {**SHORT, "in_flight": 2})
    for version in range(5):
        assert evaluator.room == max(0, 2 - version)
        evaluator.add(version, Linear.BALANCED)
    assert [verdict.passed for verdict in decided(evaluator)] == [True] * 5
    assert {shape[0] for shape in policy.batches} <= {1, 2}


def test_the_fifth_feature_is_shown_to_networks_that_need_it():
    policy = Linear()
    evaluator = Evaluator(policy, {**CARTPOLE, "squared_position": True}, SHORT)
    evaluator.add(0, np.append(Linear.BALANCED, np.float32(0)))
    assert decided(evaluator)[0].passed
    assert policy.batches[0] == (1, 20, 5)


def test_advance_returns_when_the_time_is_over_and_shows_signs_of_life(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("mlxe_async.roles.evaluator.time", SimpleNamespace(monotonic=lambda: next(clock)))
    evaluator = Evaluator(Linear(), CARTPOLE, CAP)
    evaluator.add(0, Linear.BALANCED)
    ticks = []
    assert evaluator.advance(0.0, lambda: ticks.append(1)) == []
    assert len(ticks) == 1
    assert evaluator.in_flight == 1
    assert evaluator.advance(3.0, lambda: ticks.append(1)) == []
    assert len(ticks) == 1 + 3


def test_advance_without_a_time_decides_everything():
    evaluator = Evaluator(Linear(), CARTPOLE, SHORT)
    for version in range(3):
        evaluator.add(version, Linear.BALANCED)
    assert len(evaluator.advance(None)) == 3
    assert evaluator.advance(None) == []


def test_cleared_tests_give_no_verdicts():
    evaluator = Evaluator(Linear(), CARTPOLE, SHORT)
    evaluator.add(0, Linear.BALANCED)
    evaluator.advance(0.0)
    evaluator.clear()
    assert evaluator.in_flight == 0
    evaluator.add(1, Linear.BALANCED)
    assert [verdict.version for verdict in decided(evaluator)] == [1]
    evaluator.close()


def test_the_callers_array_may_change_after_it_was_added():
    evaluator = Evaluator(Linear(), CARTPOLE, SHORT)
    flat = Linear.BALANCED.copy()
    evaluator.add(0, flat)
    flat[:] = 0
    assert decided(evaluator)[0].passed


def test_weights_of_another_length_are_refused():
    evaluator = Evaluator(Linear(), CARTPOLE, SHORT)
    evaluator.add(0, Linear.BALANCED)
    with pytest.raises(ValueError, match="version 1: expected weights of shape"):
        evaluator.add(1, np.zeros(5, np.float32))


@pytest.mark.parametrize(("action", "mean", "passed"), [(0, 0, False), (1, 10, True), (2, 20, True)])
def test_other_environments_are_judged_by_their_mean_return(action, mean, passed):
    rules = {"rule": "mean_return", "episodes": 3, "threshold": 10.0, "max_episode_steps": 50}
    evaluator = Evaluator(Constant(), {"env": "evaluator_fakes:Corridor", "max_episode_steps": 4}, rules)
    evaluator.add(3, np.array([action], np.float32))
    (verdict,) = decided(evaluator)
    assert (verdict.passed, verdict.return_mean, verdict.return_min, verdict.steps) == (passed, mean, mean, 30)


@pytest.mark.parametrize(("action", "failed_at"), [(1, None), (2, 6)])
def test_other_environments_can_be_asked_to_reach_the_cap_too(action, failed_at):
    rules = {**CAP, "episodes": 3, "max_episode_steps": 8}
    evaluator = Evaluator(Constant(), {"env": "evaluator_fakes:Corridor", "kwargs": {"ends_at": 6}}, rules)
    evaluator.add(3, np.array([action], np.float32))
    (verdict,) = decided(evaluator)
    assert (verdict.passed, verdict.failed_at) == (failed_at is None, failed_at)


@pytest.mark.parametrize("task", [CARTPOLE, {"env": "evaluator_fakes:Corridor"}])
def test_without_a_rule_all_episodes_run_to_their_end_and_nothing_is_judged(task):
    policy, flat = (Linear(), NARROW) if task is CARTPOLE else (Constant(), np.array([1], np.float32))
    evaluator = Evaluator(policy, task, {"episodes": 3, "max_episode_steps": 500, "screen_steps": 50})
    evaluator.add(3, flat)
    (verdict,) = decided(evaluator)
    assert (verdict.passed, verdict.failed_at) == (None, None)
    assert verdict.return_mean > 9


def test_versions_in_other_environments_are_tested_one_after_the_other_in_order():
    rules = {"rule": "mean_return", "episodes": 2, "threshold": 15.0, "screen_steps": 3}
    evaluator = Evaluator(Constant(), {"env": "evaluator_fakes:Corridor"}, rules)
    for version, action in enumerate([2, 0, 2]):
        evaluator.add(version, np.array([action], np.float32))
    assert [(v.version, v.passed, v.steps) for v in evaluator.advance(None)] == [
        (0, True, 20),
        (1, False, 20),
        (2, True, 20),
    ]


@pytest.mark.parametrize(("faults", "passed"), [(1, True), (3, True), (4, False)])
def test_a_test_survives_a_few_faults_of_its_environment_and_then_fails_with_the_reason(faults, passed, monkeypatch):
    monkeypatch.setattr(Corridor, "broken", faults)
    rules = {"rule": "mean_return", "episodes": 2, "threshold": 10.0}
    evaluator = Evaluator(Constant(), {"env": "evaluator_fakes:Corridor"}, rules)
    evaluator.add(0, np.array([1], np.float32))
    (verdict,) = decided(evaluator)
    assert verdict.passed == passed
    assert ("the floor gave way" in verdict.fault) == (not passed)
    assert verdict.return_mean == 10 or not passed
