"""Harder tests: adverse starts, and sampled actions. Compared with gymnasium's own environment, stepped by hand."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from evaluator_fakes import Constant, Linear

from mlxe_async.algorithms.interface import Acting
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.errors import TaskError
from mlxe_async.roles.evaluator import Evaluator, Rules, Sampled
from mlxe_async.rows import Spaces
from mlxe_async.seeds import generator

CARTPOLE = {"env": "CartPole-v1"}
ADVERSE = {"rule": "cap", "starts": "adverse", "max_episode_steps": 600, "screen_steps": 100}
WEAK = np.array([0, 0, 1.0, 0.2], np.float32)  # catches a leaning pole, and drives off the track sooner or later


def verdict_on(policy, rules, flat, task=CARTPOLE):
    evaluator = Evaluator(policy, task, rules)
    try:
        evaluator.add(3, flat)
        (verdict,) = evaluator.advance()
    finally:
        evaluator.close()
    return verdict


def by_hand(rules, begin):
    """Lengths of the 20 adverse episodes in gymnasium's own CartPole, one coordinate of its state overwritten.

    Args:
        rules: of the test.
        begin: gives what chooses the actions of one episode.
    """
    lengths = []
    for number, seed in enumerate(Rules.from_mapping(rules).seeds):
        env, choose = gymnasium.make("CartPole-v1").unwrapped, begin()
        env.reset(seed=seed)
        coordinate, place = [(0, -1.5), (0, 1.5), (2, -0.15), (2, 0.15)][number // 5]
        env.state[coordinate] = place
        obs = np.array(env.state, np.float32)
        for length in range(1, rules["max_episode_steps"] + 1):  # noqa: B007 - the last one is the result
            obs, _, terminated, _, _ = env.step(int(choose(obs)))
            if terminated:
                break
        lengths.append(length)
    return lengths


def by_weights(weights):
    return lambda: lambda obs: obs @ weights > 0


def by_memory(algorithm):
    """Each episode from an empty memory."""

    def begin():
        acting = Acting().start(algorithm.carry, 1)

        def choose(obs):
            action = algorithm.greedy(obs[None], acting)[0]
            acting.began = np.zeros(1, bool)
            return action

        return choose

    return begin


@pytest.mark.parametrize("weights", [Linear.ALWAYS_LEFT, WEAK, Linear.BALANCED])
def test_adverse_restarts_are_those_of_gymnasium_with_one_coordinate_overwritten(weights):
    rules = {**ADVERSE, "rule": "mean_return", "threshold": 100.0}
    verdict = verdict_on(Linear(), rules, weights)
    lengths = by_hand(rules, by_weights(weights))
    assert len(lengths) == 20
    assert (verdict.return_min, verdict.return_mean) == (min(lengths), np.mean(lengths))
    assert verdict.steps == sum(lengths)


@pytest.mark.parametrize("weights", [Linear.ALWAYS_LEFT, WEAK])
def test_an_adverse_test_fails_in_the_step_of_the_first_fall(weights):
    verdict = verdict_on(Linear(), ADVERSE, weights)
    first = min(by_hand(ADVERSE, by_weights(weights)))
    assert (verdict.passed, verdict.failed_at) == (False, first)


def test_adverse_starts_are_harder_than_the_standard_ones():
    short = {"rule": "cap", "max_episode_steps": 400, "screen_steps": 100}
    assert verdict_on(Linear(), short, WEAK).passed
    assert not verdict_on(Linear(), {**short, "starts": "adverse"}, WEAK).passed


def test_the_known_linear_policy_passes_from_adverse_starts_too():
    verdict = verdict_on(Linear(), {**ADVERSE, "max_episode_steps": 3_000}, Linear.BALANCED)
    assert (verdict.passed, verdict.steps) == (True, 60_000)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_memory_is_carried_through_adverse_episodes_too(in_flight):
    spaces = Spaces((4,), actions=2)
    gru = PPO(PPO.Settings(cell="gru"), spaces, seed=3, learns=False)
    flats = [(gru.weights() + np.random.default_rng(seed).normal(0, 1, 1)).astype(np.float32) for seed in (0, 1)]
    rules = {
        **ADVERSE,
        "rule": "mean_return",
        "threshold": 100.0,
        "max_episode_steps": 80,
        "in_flight": in_flight,
        "in_full": True,
    }
    evaluator = Evaluator(gru, CARTPOLE, rules)
    found = {}
    for version, flat in enumerate(flats):
        evaluator.add(version, flat)
    while len(found) < len(flats):
        found |= {one.version: one for one in evaluator.advance()}
    evaluator.close()
    for version, flat in enumerate(flats):
        gru.load(flat)
        assert list(found[version].returns or ()) == by_hand(rules, by_memory(gru)), version


@pytest.mark.parametrize(
    "task", [{"env": "evaluator_fakes:Corridor"}, {**CARTPOLE, "kwargs": {"sutton_barto_reward": True}}]
)
def test_other_environments_have_no_adverse_starts(task):
    with pytest.raises(TaskError, match="adverse starts: are those of plain CartPole, got"):
        Evaluator(Constant(), task, ADVERSE)


class Coin:
    """Pushes to the right with the probability that its only weight gives, whatever it sees."""

    def __init__(self):
        self.clocks = []

    def load(self, flat):
        self.chance = float(flat[0])

    def act(self, obs, rng, clock):
        self.clocks.append(clock)
        return {"action": (rng.random(len(obs)) < self.chance).astype(np.int64)}


def test_sampled_actions_are_drawn_by_fixed_seeds_and_played_in_gymnasiums_physics():
    """All 20 episodes draw in each step, also those that have ended, so that one does not disturb the others."""
    rules = {"rule": "mean_return", "threshold": 1.0, "max_episode_steps": 300, "screen_steps": 50, "seed": 7}
    verdict = verdict_on(Sampled(Coin(), 7), rules, np.array([0.5], np.float32))
    rng, envs = generator(7, "evaluation.actions"), []
    for seed in Rules.from_mapping(rules).seeds:
        envs.append(gymnasium.make("CartPole-v1").unwrapped)
        envs[-1].reset(seed=seed)
    lengths = np.zeros(20)
    running = set(range(20))
    while running:
        actions = (rng.random(20) < 0.5).astype(np.int64)
        for index in sorted(running):
            lengths[index] += 1
            if envs[index].step(int(actions[index]))[2]:
                running.remove(index)
    assert lengths.max() < 300
    assert (verdict.return_min, verdict.return_mean) == (lengths.min(), lengths.mean())
    assert verdict_on(Sampled(Coin(), 7), rules, np.array([0.5], np.float32)).return_mean == verdict.return_mean
    assert verdict_on(Sampled(Coin(), 8), rules, np.array([0.5], np.float32)).return_mean != verdict.return_mean


def test_sampled_actions_in_other_environments_and_with_the_clock_of_the_run():
    rules = {"rule": "mean_return", "episodes": 3, "threshold": 0.0}
    coin, clock = Coin(), Acting(steps=5, episodes=4, rollouts=3)
    verdict = verdict_on(
        Sampled(coin, 1, clock), rules, np.array([1.0], np.float32), {"env": "evaluator_fakes:Corridor"}
    )
    assert verdict.return_mean == 10
    assert {(seen.episodes, seen.rollouts) for seen in coin.clocks} == {(4, 3)}
    assert (coin.clocks[-1].steps, clock.steps) == (5 + 3 * 10, 5)  # the run's own stays as it is


def test_each_version_is_sampled_under_its_own_weights():
    rules = {"rule": "mean_return", "episodes": 3, "threshold": 0.0}
    evaluator = Evaluator(Sampled(Coin(), 1), {"env": "evaluator_fakes:Corridor"}, rules)
    for version in range(3):
        evaluator.add(version, np.array([version % 2], np.float32))
    assert [verdict.return_mean for verdict in evaluator.advance()] == [0, 10, 0]
    evaluator.close()


def test_versions_are_not_sampled_side_by_side():
    with pytest.raises(ValueError, match="expected one version at a time, got 2"):
        Sampled(Coin(), 1).greedy_many(np.zeros((2, 1), np.float32), np.zeros((2, 20, 4), np.float32))
