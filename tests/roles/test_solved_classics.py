"""The rule that holds when a file names none: on classic tasks nothing is solved by chance, and what is good is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest

from mlxe_async.roles.evaluator import Evaluator
from mlxe_async.settings.model import Evaluation
from mlxe_async.supervisor.checkpointing.solved import SolvedJudge
from mlxe_async.tasks.making import find_spec
from mlxe_async.tasks.probe import probe

FLAT = {"wrappers": ("gymnasium.wrappers:FlattenObservation",)}
STILL = {"kwargs": {"is_slippery": False}, **FLAT}


class Random:
    """Any action is as likely as any other."""

    def __init__(self, space: gymnasium.Space, seed: int) -> None:
        space.seed(seed)
        self._space = space

    def greedy_many(self, flats, obs):
        return np.array([[self._space.sample() for _ in obs[0]]])


class Rule:
    """A rule made by hand, from observations (B, O) to actions."""

    def __init__(self, chosen: Callable) -> None:
        self._chosen = chosen

    def greedy_many(self, flats, obs):
        return self._chosen(obs[0])[None]


def balance(obs):
    return (obs @ np.array([0.1, 0.3, 1.0, 0.4]) > 0).astype(np.int64)


def swing(obs):
    """Against the speed first where there is not enough of it, as Xiao 2019 has it."""
    place, speed = obs[:, 0], obs[:, 1]
    low = np.minimum(-0.09 * (place + 0.25) ** 2 + 0.03, 0.3 * (place + 0.9) ** 4 - 0.008)
    return np.where((low < speed) & (speed < -0.07 * (place + 0.38) ** 2 + 0.07), 2, 0)


def push(obs):
    return np.where(obs[:, 1:] >= 0, 0.8, -0.8).astype(np.float32)


def pump(obs):
    return np.where(obs[:, 5] > 0, 2, 0)


def swing_up(obs):
    """More energy until the pendulum stands, then hold it there."""
    upright, angle, speed = obs[:, 0], np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]
    missing = speed**2 / 6 + 5 * (upright - 1)
    torque = np.where(upright > 0.9, -15 * angle - 3 * speed, np.where(speed * missing < 0, 2.0, -2.0))
    return np.clip(torque, -2, 2)[:, None].astype(np.float32)


def planned(name: str, **kwargs):
    """The best action of each state, by value iteration over the transitions that the environment tells."""
    env = gymnasium.make(name, **kwargs).unwrapped
    chances = env.P
    values = np.zeros(len(chances))
    for _ in range(500):
        worth = np.array(
            [
                [sum(p * (r + 0.999 * (not end) * values[to]) for p, to, r, end in chances[s][a]) for a in chances[s]]
                for s in range(len(chances))
            ]
        )
        values = worth.max(1)
    return lambda obs: worth.argmax(1)[obs.argmax(1)]


@dataclass
class Classic:
    """A task, a good policy for it, and what its id was registered with."""

    env: str
    good: Callable[[], Callable]
    threshold: float
    limit: int
    more: dict


CLASSICS = [
    Classic("CartPole-v0", lambda: balance, 195, 200, {}),
    Classic("CartPole-v1", lambda: balance, 475, 500, {}),
    Classic("MountainCar-v0", lambda: swing, -110, 200, {}),
    Classic("MountainCarContinuous-v0", lambda: push, 90, 999, {}),
    Classic("Acrobot-v1", lambda: pump, -100, 500, {}),
    Classic("FrozenLake-v1", lambda: planned("FrozenLake-v1", is_slippery=False), 0.7, 100, STILL),
    Classic("FrozenLake8x8-v1", lambda: planned("FrozenLake8x8-v1", is_slippery=False), 0.85, 200, STILL),
    Classic("Pendulum-v1", lambda: swing_up, -200, 200, {}),  # registered without one: this is what a file would say
]
NAMES = [classic.env for classic in CLASSICS]
OF_LONG_EPISODES = ("MountainCarContinuous-v0", "Acrobot-v1")
BY_CHANCE = [
    pytest.param(classic, marks=pytest.mark.long) if classic.env in OF_LONG_EPISODES else classic
    for classic in CLASSICS
]


def rule_of(task: dict, written: float | None = None) -> dict:
    facts, evaluation = probe(task), Evaluation(threshold=written)
    return evaluation.completed(facts["reward_threshold"], facts["registered_max_episode_steps"]).model_dump()


def rule_for(classic: Classic) -> dict:
    return rule_of({"env": classic.env, **classic.more}, -200 if classic.env == "Pendulum-v1" else None)


def is_solved(policy, task: dict, rule: dict) -> bool:
    """Whether so many versions in a row pass as it takes; versions of a policy without weights are all alike."""
    evaluator, judge = Evaluator(policy, task, rule), SolvedJudge(rule["passes"])
    try:
        for version in range(rule["passes"]):
            evaluator.add(version, np.zeros(1, np.float32))
            (verdict,) = evaluator.advance()
            solved = judge.feed(version, passed=verdict.passed)
            if not verdict.passed:
                return False
    finally:
        evaluator.close()
    return solved == 0


@pytest.mark.parametrize("classic", CLASSICS, ids=NAMES)
def test_the_rule_is_the_one_the_id_was_registered_with_or_what_is_written_and_a_good_policy_solves_the_task(classic):
    task = {"env": classic.env, **classic.more}
    rule = rule_for(classic)
    assert (rule["rule"], rule["threshold"]) == ("mean_return", classic.threshold)
    assert rule["max_episode_steps"] == classic.limit
    assert is_solved(Rule(classic.good()), task, rule)


def solved_by_chance(classic: Classic, seeds: range) -> list[int]:
    task = {"env": classic.env, **classic.more}
    rule, space = rule_for(classic), find_spec(classic.env).make(disable_env_checker=True).action_space
    return [seed for seed in seeds if is_solved(Random(space, seed), task, rule)]


@pytest.mark.parametrize("classic", BY_CHANCE, ids=NAMES)
def test_a_random_policy_never_solves_a_task(classic):
    assert solved_by_chance(classic, range(1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("classic", CLASSICS, ids=NAMES)
def test_a_random_policy_never_solves_a_task_whatever_the_seed(classic):
    assert solved_by_chance(classic, range(20)) == []


@pytest.mark.parametrize("env", ["Pendulum-v1", "Blackjack-v1", "CliffWalking-v1"])
def test_without_a_registered_threshold_nothing_is_judged(env):
    rule = rule_of({"env": env, **({} if env.startswith("Pend") else FLAT)})
    assert (rule["rule"], rule["threshold"]) == (None, None)


def test_a_wrapper_that_changes_rewards_takes_the_registered_threshold_away():
    clipped = {"entry": "gymnasium.wrappers:ClipReward", "kwargs": {"min_reward": -0.5}}
    assert rule_of({"env": "MountainCar-v0", "wrappers": (clipped,)})["rule"] is None
