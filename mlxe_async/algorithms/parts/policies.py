"""Acting by a policy of whatever actions the task takes: what the algorithms share that learn a distribution.

One of A actions is drawn from a softmax, several choices from one softmax each, numbers (Box) from normal distributions
whose -1 and 1 are the task's bounds. A mask of allowed actions counts wherever there is one.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from mlxe_async.algorithms.distributions import (
    MASKED,
    Categorical,
    Distribution,
    Gaussian,
    MultiCategorical,
    bounded,
    raw_action,
)
from mlxe_async.algorithms.interface import STAYS, Acting, Rows, needs
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.acting import ActsByNetwork, Evaluated
from mlxe_async.networks import Floats, Network
from mlxe_async.rows import Array

LOWEST, HIGHEST = -5.0, 2.0  # of a log-deviation that the network computes
OF_NUMBERS: fields.Extra = {"task.action_kind": ["box"]}


class PolicyFields(fields.ActorCriticFields):
    """How a policy is shaped."""

    deviation: Literal["free", "computed"] = fields.key(
        "free",
        "Of actions that are numbers. free: learned numbers; computed: by the actor, for each observation.",
        STAYS | needs(OF_NUMBERS),
    )
    log_std: float = Field(
        0.0,
        ge=-5,
        le=2,
        description="First logarithm of the deviation, in units of half the action's range; higher explores further.",
        json_schema_extra=STAYS | needs(OF_NUMBERS, deviation=["free"]),
    )


class ActsByPolicy(ActsByNetwork):
    """Acts by the distribution that heads of its network tell; `actor_and_critic` makes the network."""

    of_pictures: ClassVar = {"body": "nature", "common": (512,), "policy": (), "value": (), "activation": "relu"}
    gains: ClassVar = {"policy": 0.01, "log_std": 0.01}
    """The first policy hardly depends on the observation: Andrychowicz et al. 2021, section 3.2."""
    heads: tuple[str, ...]
    """What the distribution is made of."""
    chosen: str
    """The column of what was drawn: the action, or the raw one."""

    def actor_and_critic(self, values: int = 1) -> Network:
        """The shape that the settings say: the policy's heads, and "value" (`values`, if any), on what they share."""
        s, spaces = self.settings, self.spaces
        numbers = math.prod(spaces.action_shape) if spaces.action_kind == "box" else 0
        outputs = {"policy": (*s.policy, numbers or sum(spaces.action_sizes))}
        free: dict[str, tuple[float, ...]] = {}
        self.heads, self.chosen = ("policy",), "action"
        if numbers:
            self.heads, self.chosen, self.extra_columns = ("policy", "log_std"), "raw_action", (raw_action(spaces),)
            if s.deviation == "free":
                free["log_std"] = (s.log_std,) * numbers
            else:
                outputs["log_std"] = (*s.policy, numbers)
        return self.shaped(s.common, outputs | ({"value": (*s.value, values)} if values else {}), free=free)

    def distribution(self, outputs: Any, mask: Any = None) -> Distribution:
        """Of actions, by the outputs of `heads` (B, ...), and what a mask (B, ...) allows; of numpy and torch alike."""
        spaces, (first, *others) = self.spaces, outputs
        if spaces.action_kind == "box":
            (log_std,) = others
            return Gaussian(first, log_std.clip(LOWEST, HIGHEST), spaces, scaled=True)
        if spaces.action_kind == "discrete":
            return Categorical(first, mask)
        return MultiCategorical(first, spaces.action_sizes, spaces.action_shape, mask)

    def policy(self, obs: Array, acting: Acting | None = None) -> Distribution:  # noqa: ARG002 - nothing is carried
        """What executors draw from."""
        return self.distribution(self.outputs(obs, *self.heads), self.spaces.mask(obs))

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:
        """The most probable action."""
        return self.policy(obs, acting).mode()

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """The most probable actions, of several versions."""
        if self._versions is None or self._versions[0] is not flats:
            self._versions = (flats, self.evaluator(flats))
        return self.distribution(self._versions[1](obs, *self.heads), self.spaces.mask(obs)).mode()

    def best_of(self, network: Evaluated, obs: Any) -> Any:
        """The most probable actions (B, ...) as the environment takes them, by torch."""
        import torch

        spaces, (found,) = self.spaces, network(obs, "policy")
        shape = (len(found), *spaces.action_shape)
        if spaces.action_kind == "box":
            return bounded(found, spaces)
        mask = spaces.mask(obs)
        if mask is not None:
            found = found.masked_fill(~mask, MASKED)
        pieces = [each.argmax(-1) for each in found.split(spaces.action_sizes, -1)]
        return spaces.for_environment(torch.stack(pieces, -1).reshape(shape))

    def masked(self, batch: Rows) -> Rows:
        """The column `mask` of what a batch's observations allow, where anything says so."""
        mask = self.spaces.mask(batch["obs"])
        return {} if mask is None else {"mask": np.asarray(mask)}
