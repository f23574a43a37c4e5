"""What no learning at all achieves: every table of results carries these lines, so that luck is not taken for skill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxe_async.algorithms.a3c import A3C, A3CSettings
from mlxe_async.roles.evaluator import Evaluator
from mlxe_async.rows import Array, Spaces
from mlxe_async.seeds import derive_seed, generator

AT_ONCE = 8


@dataclass(frozen=True)
class Baseline:
    """Of `tried` policies made without any learning, `passed` passed the test once."""

    name: str
    tried: int
    passed: int

    @property
    def line(self) -> str:
        """For a list below a table."""
        return f"{self.name}: {self.passed} of {self.tried} pass one test ({100 * self.passed / self.tried:.1f} %)"


class LinearPolicy:
    """The sign of a weighted sum of a four-number observation decides between two actions."""

    def greedy_many(self, flats: Array, obs: Array) -> Array:
        """Actions (V, B) of the weights (V, 4) on observations (V, B, 4)."""
        actions: Array = (np.einsum("vbo,vo->vb", obs, flats) > 0).astype(np.int64)
        return actions


def cartpole_baselines(evaluation: Mapping[str, Any], tried: int, seed: int = 0) -> list[Baseline]:
    """Test untrained policies on plain CartPole by the given `[evaluation]`.

    Args:
        evaluation: the table; its rule should be `"cap"`.
        tried: policies of each kind.
        seed: of their weights.
    """
    task = {"env": "CartPole-v1"}
    spaces = Spaces(observation_shape=(4,), actions=2)

    def networks(name: str, **fields: Any) -> Baseline:
        settings = A3CSettings.model_validate(fields)
        policy = A3C(settings, spaces, seed=0, learns=False)

        def untrained(number: int) -> Array:
            return policy.network.initial([derive_seed(seed, "baselines", number), 0])

        return _tested(name, policy, untrained, task, evaluation, tried)

    scale = (0.5, 0.5, 5.0, 0.5)
    rng = generator(seed, "baselines.linear")
    return [
        networks("untrained tanh 64,64 with scaled inputs", activation="tanh", input_scale=scale),
        networks("untrained ReLU 64,64", activation="relu"),
        _tested("random linear", LinearPolicy(), lambda _: rng.standard_normal(4), task, evaluation, tried),
        _tested("fixed linear (0.1, 0.3, 1, 0.4)", LinearPolicy(), lambda _: _FIXED, task, evaluation, 1),
    ]


_FIXED = np.array([0.1, 0.3, 1.0, 0.4])


def _tested(
    name: str,
    policy: Any,
    make: Callable[[int], Array],
    task: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    tried: int,
) -> Baseline:
    evaluator, passed = Evaluator(policy, task, {**evaluation, "in_flight": AT_ONCE}), 0
    try:
        for first in range(0, tried, AT_ONCE):
            for number in range(first, min(first + AT_ONCE, tried)):
                evaluator.add(number, np.asarray(make(number), dtype=np.float32))
            while evaluator.in_flight:
                passed += sum(verdict.passed for verdict in evaluator.advance())
    finally:
        evaluator.close()
    return Baseline(name, tried, passed)
