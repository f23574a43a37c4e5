"""What MLxE's executors do beside sampling from their policy, and an epsilon that has a clock of its own.

Source: the public MLxE scripts, whose reversed epsilon-greedy takes the best action now and then.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from mlxe_async.algorithms.interface import Acting, needs
from mlxe_async.algorithms.parts.exploration import Behaviour, noisy

MIXED = needs(behaviour=["epsilon_greedy", "reversed"])  # of what says how much of another distribution


class ExplorationFields(BaseModel):
    """What a discrete policy's executors do beside sampling from it."""

    behaviour: Behaviour = Field(
        "softmax",
        description="softmax samples the policy; epsilon_greedy takes its best action, or at random with probability "
        "epsilon; reversed samples, or takes the best with probability epsilon.",
    )
    epsilon: float = Field(
        0.1,
        ge=0,
        le=1,
        description="That probability at the start; higher departs more often.",
        json_schema_extra=MIXED,
    )
    epsilon_factor: float = Field(
        0.995,
        gt=0,
        le=10,
        description="Epsilon's factor per unit of its clock; higher falls more slowly, above 1 grows.",
        json_schema_extra=needs(behaviour=["epsilon_greedy", "reversed"], epsilon={"above": 0}),
    )
    epsilon_min: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Epsilon never falls below; higher departs for ever.",
        json_schema_extra=MIXED,
    )
    epsilon_max: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Epsilon never grows beyond; higher departs more often.",
        json_schema_extra=MIXED,
    )
    epsilon_clock: Literal["step", "episode", "iteration"] = Field(
        "step",
        description="Epsilon changes with an executor's own steps, the run's episodes, or the executor's rollouts.",
        json_schema_extra=needs(
            behaviour=["epsilon_greedy", "reversed"], epsilon={"above": 0}, epsilon_factor={"not": 1.0}
        ),
    )
    noisy: bool = noisy(False)
    noise_every: int = Field(
        0,
        ge=0,
        description="Steps between two draws of the noise; higher varies less, 0: one a rollout.",
        json_schema_extra=needs(noisy=[True]),
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> ExplorationFields:
        if self.epsilon_min > self.epsilon_max:
            raise ValueError(f"epsilon_min: got {self.epsilon_min}, expected at most epsilon_max = {self.epsilon_max}")
        return self


def epsilon(fields: ExplorationFields, clock: Acting) -> float:
    """Epsilon = epsilon * epsilon_factor ** (units of the clock), within [epsilon_min, epsilon_max]."""
    units = {"step": clock.steps, "episode": clock.episodes, "iteration": clock.rollouts}[fields.epsilon_clock]
    # By logarithms: a factor above 1 would overflow in a long run, a share never exceeds 1.
    grown = math.log(fields.epsilon) + units * math.log(fields.epsilon_factor) if fields.epsilon else -math.inf
    return min(fields.epsilon_max, max(fields.epsilon_min, math.exp(min(0.0, grown))))
