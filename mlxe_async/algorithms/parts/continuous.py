"""Code of SAC, TD3 and DDPG: their keys, critics of observations and actions, one-step targets, bounded actions.

Critics judge actions in [-1, 1]; the environment gets them within its bounds. Until the first update actions are
uniformly random. The number `noise` says so; it is published with the weights: a saved policy acts by its actor.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from mlxe_async.algorithms.distributions import bounded
from mlxe_async.algorithms.interface import Acting, Algorithm, Rows
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.exploration import HELD, held, held_columns
from mlxe_async.algorithms.parts.fields import BOOTSTRAPS, Sizes, key
from mlxe_async.algorithms.parts.policies import OF_NUMBERS, box_entries, refuse_pictures, unit_actions
from mlxe_async.algorithms.parts.replay import ends_of, moments_in, refuse_moments, stored, target_columns
from mlxe_async.maths import returns
from mlxe_async.maths.normaliser import Moments
from mlxe_async.networks import Activation, Floats, Parameters
from mlxe_async.networks.seen import dense_parameters
from mlxe_async.rows import Array, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mlxe_async.networks.bodies import Body
    from mlxe_async.networks.dense import Dense

RANDOM = -1.0
"""`noise` before the first update."""
LARGEST_UNIT = 1 - 1e-6  # of an action of which there is a raw one


class ContinuousFields(BaseModel):
    """Keys that all three have."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    layers: Sizes = key(
        (256, 256),
        "Hidden layers of the actor and of each critic; more represent finer actions, but slower.",
        stays=True,
    )
    activation: Activation = fields.activation("relu")
    normalise: bool = key(False, "Show networks (obs - mean) / deviation of what was seen so far.", stays=True)
    discount: float = fields.discount(0.99)
    n_step: int = fields.n_step(1)
    return_scale: float = key(1.0, "Factor for rewards; higher makes values larger.", gt=0)
    batch: int = fields.batch(256)
    start_rows: int = key(1000, "Rows of random actions to gather before learning begins; more are more diverse.", ge=1)
    hold_steps: int = key(
        1, "Steps for which such an action is held; more lead farther where one step moves little.", OF_NUMBERS, ge=1
    )
    train_every: int = key(1, "New rows until updates are due; higher replays every row less often.", ge=1, le=10**6)
    updates_each: int = key(1, "Updates that are due then; more learn more from every row, but slower.", ge=1, le=10**4)
    learning_rate: float = key(1e-3, "The actor's; higher learns faster, until it forgets or diverges.", gt=0)
    critic_learning_rate: float = key(1e-3, "The critics'; higher learns faster, until values diverge.", gt=0)
    target_rate: float = key(
        0.005, "Share of the way that targets go in an update; higher follows faster.", BOOTSTRAPS, gt=0, le=1
    )
    max_gradient_norm: float = fields.max_gradient_norm(0.0)


def td_target(partial: torch.Tensor, coefficient: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`partial` rewards up to s' + `coefficient` * V(s') (M,): the discount up to s', 0 where the world ended."""
    return (partial + coefficient * value).detach()


def critic_loss(q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Half the mean squared error of each critic (C, M), added up; moves q only."""
    return 0.5 * (q - target.detach()).square().mean(-1).sum()


class Continuous(Algorithm):
    """An actor, which is published, and critics, which stay in the learner.

    An author writes `build` and `build_learner`, which make the networks, `policy`, `act`, and `update`.
    """

    settings: Any
    memory, off_policy, takes_arrays = "replay", "learns", True
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 1, "sync": "rollout", "rollout_steps": 16}
        | {"updates_per_publish": 16, "max_owed_updates": 128},
        "memory": {"capacity_rows": 200_000},
    }
    see: Body
    actor: Dense
    rows_seen: int
    unused: int
    noise: torch.Tensor
    """Deviation of the exploration noise (1,); `RANDOM` before the first update."""

    @classmethod
    def outputs_for(cls, spaces: Spaces) -> int:
        """Outputs of the actor.

        Raises:
            ValueError: actions are of a kind that it does not know.
        """
        return box_entries(cls, spaces)

    @classmethod
    def parameters_for(cls, settings: Any, spaces: Spaces) -> Parameters:
        """Return what `build` publishes, told without torch; see `interface.Algorithm.parameters_for`."""
        refuse_pictures(cls, spaces)
        double = 4  # numbers of 64 bits are published in pieces of 16
        moments = (("mean", (spaces.entries,)), ("variance", (spaces.entries,)), ("rows", ()))
        shown = [(f"see.normaliser.{name}", (double * math.prod(shape),)) for name, shape in moments]
        dense = dense_parameters("actor", spaces.entries, settings.layers, cls.outputs_for(spaces))
        return (*(shown if settings.normalise else ()), ("noise", (1,)), *dense)

    def build(self) -> None:
        """Make what the networks see of observations, and counters.

        Raises:
            ValueError: observations are pictures, or have some among their parts.
        """
        refuse_pictures(type(self), self.spaces)
        refuse_moments(self.spaces, self.settings)
        import torch

        from mlxe_async.networks.bodies import Body

        s = self.settings
        self.see, self.noise = Body(self.spaces, {}, normalise=s.normalise), torch.tensor([RANDOM])
        self.rows_seen = self.unused = 0
        self.carry = held_columns(s.hold_steps, self.spaces)
        self.derived_columns = target_columns(self.spaces) if s.n_step > 1 else ()

    def network(self, inputs: int, outputs: int, last: float = 1.0) -> Dense:
        """Layers as the settings say; the first weights of the last one are `last` times as large."""
        from torch import nn

        from mlxe_async.networks.dense import dense, glorot

        s = self.settings
        made = dense(inputs, s.layers, outputs, nn.Tanh if s.activation == "tanh" else nn.ReLU)
        glorot(made, last)
        return made

    # -- the memory --

    def derive(self, segment: Rows) -> Rows:
        """The derived columns (L, ...) of a closed segment."""
        return self.derive_many(segment, np.array([len(segment["reward"])]))

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Each row's n-step target as partial + coefficient * V(cut_obs). One step needs nothing but the row."""
        s = self.settings
        if s.n_step == 1:
            return {}
        reward, (ended, _) = segments["reward"] * s.return_scale, ends_of(segments, lengths)
        return stored(returns.n_step_many(reward, lengths, ended, s.discount, s.n_step), segments["next_obs"])

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:  # noqa: ARG002 - counted by rows
        """`updates_each` for each `train_every` new rows, remainders kept; from the first `start_rows` on."""
        self.rows_seen += new_rows
        if max(self.rows_seen, rows) < self.settings.start_rows:
            return 0
        due, self.unused = divmod(self.unused + new_rows, self.settings.train_every)
        return int(due * self.settings.updates_each)

    def columns(self, batch: Rows) -> Rows:
        """Return what an update needs of a batch (M, ...): observations as stored, and actions as critics take them."""
        s, rows = self.settings, {"obs": batch["obs"], "action": self.unit(batch)}
        if s.n_step > 1:
            derived = {column.name: batch[column.name] for column in self.derived_columns if column.name != "cut_obs"}
            return rows | derived | {"following": batch["cut_obs"]}
        partial = batch["reward"] * np.float32(s.return_scale)
        coefficient = s.discount * (1 - batch["terminated"].astype(np.float32))
        return rows | {"partial": partial, "coefficient": coefficient, "following": batch["next_obs"]}

    def unit(self, batch: Rows) -> Array:
        """A batch's actions as critics take them: in [-1, 1] (M, D), discrete ones as they are (M,)."""
        return unit_actions(batch, self.spaces)

    # -- learning --

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        """Normal numbers of the shape of `like`, by this object's own generator."""
        return self.tensors({"normal": self.rng.standard_normal(tuple(like.shape), np.float32)})["normal"]

    def judged(self, critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Values (C, M) of actions in [-1, 1] (M, D) by these critics."""
        import torch

        return torch.cat([critic(torch.cat([obs, action], -1)) for critic in critics], -1).T

    # -- acting --

    def uniform(self, rows: int, rng: np.random.Generator, acting: Acting) -> Rows:
        """Uniformly random actions within the bounds, each held for `hold_steps`, with their density in [-1, 1]."""
        unit = rng.uniform(-1, 1, (rows, math.prod(self.spaces.action_shape)))
        if HELD in acting.carry:
            unit = held(unit, acting.carry[HELD], self.settings.hold_steps)
        log_prob = np.full(rows, -math.prod(self.spaces.action_shape) * math.log(2), np.float32)
        raw = np.arctanh(unit.clip(-LARGEST_UNIT, LARGEST_UNIT)).reshape(rows, *self.spaces.action_shape)
        return {"action": self.bounded(unit), "raw_action": raw.astype(np.float32), "log_prob": log_prob}

    def bounded(self, unit: Array) -> Array:
        """Actions (..., D), cut to [-1, 1], as the environment takes them (..., *shape)."""
        low, high = self.spaces.bounds
        action = (low + 0.5 * (unit + 1) * (high - low)).astype(np.float32).clip(low, high)  # rounding may lead beyond
        return np.asarray(action.reshape((*unit.shape[:-1], *self.spaces.action_shape)))

    def module(self) -> nn.Module:
        """Return what acts: outputs (B, n) of the actor for observations (B, *O)."""
        from torch import nn

        from mlxe_async.networks import sequential

        found = nn.Sequential(copy.deepcopy(self.see), copy.deepcopy(self.actor))
        sequential.act_by_torch([found])
        return found

    def deterministic_module(self) -> nn.Module:
        """The same, and behind it the best actions as the environment takes them."""
        from mlxe_async.networks.heads import Deterministic

        return Deterministic(self.module(), self.best_of)

    def best_of(self, outputs: Any, obs: torch.Tensor) -> Any:
        """The best actions (B, *shape) as the environment takes them, by torch: tanh of the first D outputs."""
        spaces, found = self.spaces, outputs(obs)[0]
        if spaces.actions is not None:
            return spaces.for_environment(found.argmax(-1))
        return bounded(found[..., : math.prod(spaces.action_shape)].tanh(), spaces)

    # -- running moments of observations; see `optional_verbs.Normalising` --

    @property
    def moment_entries(self) -> int:
        """Entries of an observation that are counted."""
        return self.see.outputs if self.settings.normalise else 0

    def set_moments(self, moments: Moments) -> None:
        """Show networks what they learn from by these moments."""
        self.see.put(moments)

    def moments_in(self, flat: Floats) -> Moments:
        """The moments that travel in published weights (P,)."""
        return moments_in(self, flat, "see.normaliser")
