"""Acting of DDPG and TD3: the best action of an actor, with Gaussian or Ornstein-Uhlenbeck noise."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from mlxe_async.algorithms.distributions import as_array
from mlxe_async.algorithms.interface import Acting, Rows
from mlxe_async.algorithms.parts.continuous import RANDOM, ContinuousFields
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.rows import Array, Column


class NoiseFields(ContinuousFields):
    """Keys of both."""

    noise: Literal["gaussian", "ou"] = key(
        "gaussian", "ou: an Ornstein-Uhlenbeck process, whose noise keeps its direction for some steps."
    )
    noise_first: float = key(0.1, "Its deviation at the start, for actions in [-1, 1]; higher sees more.", ge=0)
    noise_last: float = key(0.1, "Deviation after noise_steps; higher explores for ever.", ge=0)
    noise_steps: int = key(
        10_000, "Environment steps until noise_last; more explore longer.", "noise_first != noise_last", ge=1
    )
    noise_pull: float = key(
        0.15,
        "Share of ou's noise that a step takes away; higher changes direction sooner.",
        'noise == "ou"',
        gt=0,
        le=1,
    )
    critic_decay: float = key(0.0, "L2 of the critic; higher keeps its weights smaller. The paper has 0.01.", ge=0)


def carried(s: NoiseFields, entries: int) -> tuple[Column, ...]:
    """Return what each environment carries from step to step: the process's noise (D,)."""
    return (Column("noise", "<f4", (entries,)),) if s.noise == "ou" else ()


def mean(algorithm: Any, obs: Array) -> Array:
    """tanh(mu) (B, D) of observations (B, *O) as arrays."""
    with algorithm.inference():
        return np.tanh(as_array(algorithm.actor(algorithm.see(algorithm.observed(obs)))))


def acted(algorithm: Any, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
    """tanh(mu) and noise, within the bounds; before the first update uniformly random. Log-probabilities are 0."""
    log_prob, deviation = np.zeros(len(obs), np.float32), algorithm.noise.item()
    if deviation == RANDOM:
        uniform: Rows = algorithm.uniform(len(obs), rng, acting)
        return uniform | {"log_prob": log_prob}
    unit, s = mean(algorithm, obs), algorithm.settings
    noise = np.float32(deviation) * rng.standard_normal(unit.shape, np.float32)
    if s.noise == "ou":  # x' = (1 - pull) x + deviation * N(0, 1); an episode begins at x = 0
        noise += (1 - s.noise_pull) * acting.carry["noise"]
        acting.carry["noise"][...] = noise
    found: Rows = {"action": algorithm.bounded(unit + noise), "log_prob": log_prob}
    return found
