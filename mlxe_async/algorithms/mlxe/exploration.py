"""MLxE's exploration beside sampling from the policy, and an epsilon that has a clock of its own.

Source: the public MLxE scripts, whose reversed epsilon-greedy takes the best action now and then.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, model_validator

from mlxe_async.algorithms.interface import Acting
from mlxe_async.algorithms.parts.exploration import Behaviour, noisy
from mlxe_async.algorithms.parts.fields import key

MIXED = 'behaviour in ("epsilon_greedy", "reversed")'  # of what says how much of another distribution


class ExplorationFields(BaseModel):
    """Settings of how a discrete policy's executors explore beside sampling from it."""

    behaviour: Behaviour = key(
        "softmax",
        "softmax samples the policy; epsilon_greedy takes its best action, or any with probability epsilon; "
        "reversed samples, or takes the best with it.",
    )
    epsilon: float = key(0.1, "Probability epsilon at the start; higher departs more often.", MIXED, ge=0, le=1)
    epsilon_factor: float = key(
        0.995,
        "Epsilon's factor per unit of its clock; higher falls more slowly, above 1 grows.",
        f"{MIXED} and epsilon > 0",
        gt=0,
        le=10,
    )
    epsilon_min: float = key(0.0, "Epsilon never falls below; higher departs for ever.", MIXED, ge=0, le=1)
    epsilon_max: float = key(1.0, "Epsilon never grows beyond; higher departs more often.", MIXED, ge=0, le=1)
    epsilon_clock: Literal["step", "episode", "iteration"] = key(
        "step",
        "Epsilon changes with an executor's steps or rollouts, or the run's episodes.",
        f"{MIXED} and epsilon > 0 and epsilon_factor != 1.0",
    )
    noisy: bool = noisy(False)
    noise_every: int = key(
        0, "Steps between two draws of the noise; higher varies less, 0: one a rollout.", "noisy", ge=0
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> ExplorationFields:
        if self.epsilon_min > self.epsilon_max:
            raise ValueError(f"epsilon_min: got {self.epsilon_min}, expected at most epsilon_max = {self.epsilon_max}")
        return self


def epsilon(fields: ExplorationFields, clock: Acting) -> float:
    """Epsilon = epsilon * epsilon_factor ** (units of the clock), within [epsilon_min, epsilon_max]; or its own."""
    units = {"step": clock.steps, "episode": clock.episodes, "iteration": clock.rollouts}[fields.epsilon_clock]
    # By logarithms: a factor above 1 would overflow in a long run, a share never exceeds 1.
    grown = math.log(fields.epsilon) + units * math.log(fields.epsilon_factor) if fields.epsilon else -math.inf
    return clock.share(min(fields.epsilon_max, max(fields.epsilon_min, math.exp(min(0.0, grown)))))
