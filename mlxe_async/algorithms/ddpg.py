"""DDPG, deep deterministic policy gradient: a deterministic actor that climbs a critic, both learned from replay.

Paper: Lillicrap et al. 2016. Where we differ: exploration noise is Gaussian unless `noise = "ou"`, and may fall with
environment steps; actor and critic have the same layers and learning rate; L2 on the critic is off unless
`critic_decay` is set; actions are uniformly random until learning begins. Truncation bootstraps from the row's own next
observation; only termination has no future. Noise is measured in actions of [-1, 1], whatever the bounds are.

What do I change to make ...
  DDPG as published           no code: noise = "ou", noise_first = 0.2, noise_last = 0.2, critic_decay = 0.01,
                              batch = 64, layers = [400, 300], learning_rate = 1e-4, target_rate = 0.001.
  another loss or target      `actor_loss`; `critic_loss` and `td_target` of `continuous`: pure functions.
  another exploration         `act`; what it keeps from step to step is declared in `carry`.
  TD3                         no code: name = "td3"; `td3.py` is this file with three changes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.algorithms.interface import Acting, Clock, Rows, Tensors
from mlxe_async.algorithms.parts.continuous import Continuous, critic_loss, td_target
from mlxe_async.algorithms.parts.deterministic import NoiseFields, acted, carried, mean
from mlxe_async.algorithms.parts.layers import polyak
from mlxe_async.maths import annealing
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class DDPGSettings(NoiseFields):
    """The fields of `[algorithm]` beside `name = "ddpg"`."""


def actor_loss(q: torch.Tensor) -> torch.Tensor:
    """Mean of -Q(s, mu(s)), of values (M,)."""
    return -q.mean()


class DDPG(Continuous):
    """Acts by tanh(mu) and noise; learns from `batch` rows at a time. It stores 0 for log-probabilities."""

    Settings = DDPGSettings
    settings: DDPGSettings

    def build(self) -> None:
        """The actor, and the noise that ou carries."""
        super().build()
        entries = self.outputs_for(self.spaces)
        self.actor = self.network(self.see.outputs, entries, last=0.02)
        self.carry += carried(self.settings, entries)

    def build_learner(self) -> None:
        """The critic, the targets of both, and optimisers."""
        from torch import nn

        s, inputs = self.settings, self.see.outputs + self.outputs_for(self.spaces)
        self.critics = nn.ModuleList([self.network(inputs, 1)])
        self.critic_targets, self.actor_target = copy.deepcopy(self.critics), copy.deepcopy(self.actor)
        self.actor_optimiser = Adam(self.actor.parameters(), s.learning_rate)
        self.critic_optimiser = Adam(self.critics.parameters(), s.critic_learning_rate)

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """tanh(mu) and noise, within the bounds; before the first update uniformly random."""
        return acted(self, obs, rng, acting)

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - tests are without noise
        """tanh(mu), within the bounds."""
        return self.bounded(mean(self, obs))

    def update(self, batch: Rows, clock: Clock) -> dict[str, Any]:
        """One step of the critic, one of the actor; then both targets follow."""
        s, rows = self.settings, self.tensors(self.columns(batch))
        rows |= {name: self.see(rows[name]) for name in ("obs", "following")}
        q = self.judged(self.critics, rows["obs"], rows["action"])
        loss = critic_loss(q, self.targets(rows))
        self.critic_optimiser.zero_grad()
        loss.backward()
        gradient, weights = self.critic_optimiser.gradient, self.critic_optimiser.weights
        gradient.add_(weights, alpha=s.critic_decay)  # of critic_decay / 2 |w|^2
        norm = clip_grad_norm_(gradient, s.max_gradient_norm)
        self.critic_optimiser.step()
        found: dict[str, Any] = {"critic_loss": loss, "value": q.mean(), "gradient_norm": norm}
        chosen = self.actor(rows["obs"]).tanh()
        loss = actor_loss(self.judged(self.critics, rows["obs"], chosen)[0])
        self.actor_optimiser.zero_grad()
        loss.backward(inputs=[*self.actor.parameters()])
        clip_grad_norm_(self.actor_optimiser.gradient, s.max_gradient_norm)
        self.actor_optimiser.step()
        polyak(self.actor_target, self.actor, s.target_rate)
        polyak(self.critic_targets, self.critics, s.target_rate)
        noise = annealing.linear(s.noise_first, s.noise_last, s.noise_steps, clock.env_steps)
        self.noise.fill_(noise)
        return found | {"actor_loss": loss, "noise": noise}

    def targets(self, rows: Tensors) -> torch.Tensor:
        """`partial` + `coefficient` * Q'(s', mu'(s')) (M,), without gradient."""
        import torch

        with torch.no_grad():
            action = self.actor_target(rows["following"]).tanh()
            value = self.judged(self.critic_targets, rows["following"], action)[0]
            return td_target(rows["partial"], rows["coefficient"], value)
