"""Exploration: mixtures of a policy with its best action or with random ones, and noise in its weights.

Papers: Mnih et al. 2015 (epsilon-greedy), Fortunato et al. 2018 (noisy networks), and the public MLxE scripts, whose
reversed epsilon-greedy takes the best action now and then instead of a random one: a policy that is still uncertain
is seen to do what it would do once it is not.

Every departure is a distribution mu(a|s) that is drawn from like any other, so that the log-probability stored with
an action is that of the mixture, and replayed rows can be corrected by it.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from mlxe_async.algorithms.interface import Acting
from mlxe_async.algorithms.parts.fields import key, shared
from mlxe_async.networks import Floats
from mlxe_async.rows import Array, Column, Spaces

Behaviour = Literal["softmax", "epsilon_greedy", "reversed"]
OF_EPSILON = 'not noisy and behaviour == "epsilon_greedy"'
HELD = "held"
NEVER = 1e-12  # stands for the probability 0 where a logarithm is taken


noisy = shared("Act and learn with weights under learned noise (NoisyNets), test without.", stays=True)


class ValueExplorationFields(BaseModel):
    """Settings of how executors that act by values explore, beside taking the best action."""

    behaviour: Literal["epsilon_greedy", "softmax"] = key(
        "epsilon_greedy", "softmax draws from softmax(Q / temperature) instead.", "not noisy"
    )
    temperature: float = key(
        0.1,
        "Temperature of softmax; higher makes worse actions more frequent.",
        'behaviour == "softmax" and not noisy',
        gt=0,
    )
    epsilon_first: float = key(1.0, "Share of random actions at the start; higher sees more.", OF_EPSILON, ge=0, le=1)
    epsilon_last: float = key(0.05, "Share after epsilon_steps; higher explores for ever.", OF_EPSILON, ge=0, le=1)
    epsilon_steps: int = key(
        10_000,
        "Environment steps until epsilon_last; more explore longer.",
        f"{OF_EPSILON} and epsilon_first != epsilon_last",
        ge=1,
    )


class NoisyValueExplorationFields(ValueExplorationFields):
    """Settings of exploration by networks, whose weights may be noisy instead."""

    noisy: bool = noisy(False)
    noise_sigma: float = key(
        0.5,
        "Deviation of that noise at the start, over the root of a layer's inputs; higher explores more.",
        "noisy",
        stays=True,
        gt=0,
    )
    noise_every: int = key(
        1, "Steps between two draws of the noise while acting; higher varies less, 0: one a rollout.", "noisy", ge=0
    )


def mixture(log_probs: Floats, behaviour: Behaviour, share: float | NDArray[np.float64]) -> Floats:
    """Log mu (B, A) of the behaviour, given log pi (B, A) of the policy.

    `"softmax"`: pi. `"epsilon_greedy"`: share / A + (1 - share) [a is best]. `"reversed"`: share [a is best] +
    (1 - share) pi. The share is one for all, or one for each observation (B, 1).
    """
    if behaviour == "softmax":
        return log_probs
    actions = log_probs.shape[-1]
    best = np.arange(actions) == log_probs.argmax(-1, keepdims=True)
    if behaviour == "epsilon_greedy":
        probability = share / actions + (1 - share) * best
    else:
        probability = share * best + (1 - share) * np.exp(log_probs)
    result: Floats = np.log(np.maximum(probability, NEVER)).astype(np.float32)
    return result


def held_columns(hold_steps: int, spaces: Spaces) -> tuple[Column, ...]:
    """Return the column that each environment carries where random actions are held: the action, and steps left."""
    holds = hold_steps > 1 and spaces.action_kind == "box"
    return (Column(HELD, "<f4", (math.prod(spaces.action_shape) + 1,)),) if holds else ()


def held(unit: Array, carried: Array, steps: int) -> Array:
    """New actions (B, D), or those held (B, D + 1) with the number of steps left, which goes down by one in place."""
    goes_on = carried[:, -1] > 0
    actions = np.where(goes_on[:, None], carried[:, :-1], unit.astype(carried.dtype))
    carried[:, :-1] = actions
    carried[:, -1] = np.where(goes_on, carried[:, -1], steps) - 1
    return np.asarray(actions)


class NoiseRenewal:
    """Draws the noise of a network that acts: at a rollout's start, and every few steps.

    Where it is in a rollout is no state: who takes a rollout up draws the noise that it began with.
    """

    def __init__(self) -> None:
        self.rollout, self.step = -1, 0

    def renew(self, network: Any, every: int, rng: np.random.Generator, acting: Acting) -> None:
        """Draw it anew if that is due; `every` 0: at a rollout's start alone."""
        from mlxe_async.networks.noisy import draw

        since = acting.steps - self.step  # negative where another begins to act by it, such as a test
        if self.rollout == acting.rollouts and since >= 0 and not (every and since >= every):
            return
        self.rollout, self.step = acting.rollouts, acting.steps
        draw(network, rng)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing to load."""
