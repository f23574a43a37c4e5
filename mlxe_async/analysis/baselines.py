"""What no learning, or hardly any, achieves: results are read beside these, so that luck is not taken for skill.

Policies drawn at random are tested once each. The cross-entropy method searches the four weights of a linear policy
(Szita & Lorincz 2006: decreasing extra variance) and is judged as runs are: versions in a row that pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.roles.evaluator import Evaluator
from mlxe_async.rows import Array, Spaces
from mlxe_async.seeds import derive_seed, generator
from mlxe_async.tasks.cartpole import START_BOUND
from mlxe_async.tasks.measuring import random_action
from mlxe_async.tasks.physics import BLOCK, CartPolePhysics
from mlxe_async.tasks.vector import VectorTask

AT_ONCE = 8
POPULATION, ELITE = 10, 3
GENERATIONS = 30
EXTRA_VARIANCE, EXTRA_GENERATIONS = 0.3, 10
CEM_EPISODE_STEPS = 500
MOST_CEM_SEEDS = 20
RANDOM_SEED = 30_000


@dataclass(frozen=True)
class Baseline:
    """Of `tried` policies, or searches for one, `solved` did what `rule` says.

    Args:
        name: what it is.
        solved: how many passed.
        tried: of how many.
        rule: how they were judged.
        episodes: training episodes of each search when the first of the passing versions was found, None for those that
            failed; empty where nothing is trained.
        env_steps: environment steps likewise.
    """

    name: str
    solved: int
    tried: int
    rule: str
    episodes: tuple[int | None, ...] = ()
    env_steps: tuple[int | None, ...] = ()


class LinearPolicy:
    """The sign of a weighted sum of a four-number observation decides between two actions."""

    def greedy_many(self, flats: Array, obs: Array) -> Array:
        """Actions (V, B) of the weights (V, 4) on observations (V, B, 4)."""
        actions: Array = (np.einsum("vbo,vo->vb", obs, flats) > 0).astype(np.int64)
        return actions


def cartpole_baselines(evaluation: Mapping[str, Any], tried: int, seed: int = 0) -> list[Baseline]:
    """Test untrained policies, and those that the cross-entropy method finds, on plain CartPole.

    Args:
        evaluation: the `[evaluation]` table; its rule should be `"cap"`.
        tried: policies of each kind; at most 20 searches.
        seed: of their weights.
    """
    spaces = Spaces(observation_shape=(4,), actions=2)

    def networks(name: str, **fields: Any) -> Baseline:
        settings = MLxESettings.model_validate(fields)
        policy = MLxE(settings, spaces, seed=0, learns=False)

        def untrained(number: int) -> Array:
            return MLxE(settings, spaces, seed=derive_seed(seed, "baselines", number), learns=False).weights()

        return _tested(name, policy, untrained, evaluation, tried)

    scale = (0.5, 0.5, 5.0, 0.5)
    rng = generator(seed, "baselines.linear")
    return [
        networks("untrained tanh 64,64 with scaled inputs", activation="tanh", input_scale=scale),
        networks("untrained ReLU 64,64", activation="relu"),
        _tested("random linear", LinearPolicy(), lambda _: rng.standard_normal(4), evaluation, tried),
        *cross_entropy_baselines(evaluation, min(tried, MOST_CEM_SEEDS), seed),
        _tested("fixed linear (0.1, 0.3, 1, 0.4)", LinearPolicy(), lambda _: _FIXED, evaluation, 1),
    ]


_FIXED = np.array([0.1, 0.3, 1.0, 0.4])


def cross_entropy_baselines(evaluation: Mapping[str, Any], seeds: int, seed: int = 0) -> list[Baseline]:
    """Linear policies by the cross-entropy method; the mean of each generation is a version that is tested.

    A generation is ten policies, one episode of at most 500 steps each; the next one is drawn around the best three,
    with an extra variance that fades within ten generations. A search that has not solved the task after 300 episodes
    is a failure.

    Args:
        evaluation: the `[evaluation]` table.
        seeds: how many searches.
        seed: of all of them.

    Returns:
        The same searches judged twice: by the first version that passes a test, and by versions in a row.
    """
    searches = [_Search(generator(seed, "baselines.cem", number)) for number in range(seeds)]
    passes = int(evaluation.get("passes") or 1)
    with _evaluator(LinearPolicy(), evaluation) as evaluator:
        for _ in range(GENERATIONS):
            unsolved = [search for search in searches if search.streak < passes]
            for first in range(0, len(unsolved), AT_ONCE):
                some = unsolved[first : first + AT_ONCE]
                for number, search in enumerate(some):
                    search.next_generation()
                    evaluator.add(number, search.mean.astype(np.float32))
                while evaluator.in_flight:
                    for verdict in evaluator.advance():
                        some[verdict.version].hear(passed=verdict.passed is True)
    return [
        _found("linear by cross-entropy", "one test", [search.first_pass for search in searches]),
        _found(
            "linear by cross-entropy",
            f"{passes} in a row",
            [search.first if search.streak >= passes else None for search in searches],
        ),
    ]


def _found(name: str, rule: str, at: Sequence[tuple[int, int] | None]) -> Baseline:
    return Baseline(
        name,
        solved=sum(one is not None for one in at),
        tried=len(at),
        rule=rule,
        episodes=tuple(None if one is None else one[0] for one in at),
        env_steps=tuple(None if one is None else one[1] for one in at),
    )


class _Search:
    """One search, and how many versions in a row have passed."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._generation = self._steps = 0
        self.mean, self._variance = np.zeros(4), np.ones(4)
        self.streak = 0
        # Episodes and steps when the first version passed, and when the first of the present streak did.
        self.first_pass: tuple[int, int] | None = None
        self.first: tuple[int, int] | None = None

    def next_generation(self) -> None:
        """Draw, play, and take the mean and variance of the best."""
        extra = EXTRA_VARIANCE * max(0.0, 1 - self._generation / EXTRA_GENERATIONS)
        weights = self.mean + self._rng.standard_normal((POPULATION, 4)) * np.sqrt(self._variance + extra)
        steps = _play(weights, self._rng.uniform(-START_BOUND, START_BOUND, (POPULATION, 4)))
        best = weights[np.argsort(-steps, kind="stable")[:ELITE]]
        self.mean, self._variance = best.mean(0), best.var(0)
        self._generation += 1
        self._steps += int(steps.sum())

    def hear(self, *, passed: bool) -> None:
        """The verdict on the mean."""
        if not passed:
            self.streak = 0
            return
        if not self.streak:
            self.first = self._generation * POPULATION, self._steps
            self.first_pass = self.first_pass or self.first
        self.streak += 1


def _play(weights: Array, starts: Array) -> Array:
    """Steps (N,) of one episode under each linear policy (N, 4) from its start (N, 4), at most 500."""
    physics, steps = CartPolePhysics(starts), np.full(len(weights), CEM_EPISODE_STEPS)
    done = 0
    with np.errstate(all="ignore"):  # rows that have fallen whirl on
        while done < CEM_EPISODE_STEPS:
            ticks = min(BLOCK, CEM_EPISODE_STEPS - done)
            for _ in range(ticks):
                physics.tick((np.einsum("no,no->n", physics.obs, weights) > 0).astype(np.int64))
                physics.observe()
            fallen = physics.fallen()
            new = (fallen >= 0) & (steps == CEM_EPISODE_STEPS)
            steps[new] = done + fallen[new] + 1
            done += ticks
            if (steps < done).all():
                break
    return steps


def _tested(
    name: str, policy: Any, make: Callable[[int], Array], evaluation: Mapping[str, Any], tried: int
) -> Baseline:
    passed = 0
    with _evaluator(policy, evaluation) as evaluator:
        for first in range(0, tried, AT_ONCE):
            for number in range(first, min(first + AT_ONCE, tried)):
                evaluator.add(number, np.asarray(make(number), dtype=np.float32))
            while evaluator.in_flight:
                passed += sum(verdict.passed is True for verdict in evaluator.advance())
    return Baseline(name, passed, tried, "one test")


@contextlib.contextmanager
def _evaluator(policy: Any, evaluation: Mapping[str, Any]) -> Iterator[Evaluator]:
    evaluator = Evaluator(policy, {"env": "CartPole-v1"}, {**evaluation, "in_flight": AT_ONCE})
    try:
        yield evaluator
    finally:
        evaluator.close()


def random_play(task: Mapping[str, Any], episodes: int = 20, *, most_steps: int = 100_000) -> tuple[float, int]:
    """Mean return of random play, and of how many episodes.

    Actions and starts follow from fixed seeds, and the environment's own rewards and starts are taken.

    Args:
        task: a `[task]` table.
        episodes: to be played.
        most_steps: after which no further episode is begun, and one under way is left out unless it is the first.

    Raises:
        TaskError: the environment cannot be made.
        EnvironmentFault: it raised, or returned what it must not.
    """
    rng, world = np.random.default_rng(0), VectorTask(task, 1, evaluation=True)
    returns, steps = list[float](), 0
    try:
        for episode in range(episodes):
            obs, total, going = world.reset(0, RANDOM_SEED + episode), 0.0, True
            while going and steps < most_steps:
                step = world.step(random_action(world.spaces, rng, obs), [0])
                if step.faults:
                    raise step.faults[0]
                obs, total, steps = step.next_obs[0], total + float(step.raw_reward[0]), steps + 1
                going = not (step.terminated[0] or step.truncated[0])
            if not going or not returns:
                returns.append(total)
            if steps >= most_steps:
                break
    finally:
        world.close()
    return float(np.mean(returns)), len(returns)
