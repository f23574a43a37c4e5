"""TD3, twin delayed DDPG: DDPG with three changes against overestimated values.

Paper: Fujimoto et al. 2018. Targets take the lower of two critics, and smooth the target action by clipped noise; actor
and targets move in every `policy_delay`-th update. Noise is in actions of [-1, 1]. Where we differ: as DDPG here.

What do I change to make ...
  TD3 as published            no code: layers = [400, 300], batch = 100, start_rows = 10000.
  one of the changes alone    `following_action`. No code: target_noise = 0.0, policy_delay = 1.
  more critics than two       `range(3)` in `build_learner`: targets take the lowest.
  another exploration         `act`. No code: noise = "ou", noise_first, noise_last.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.algorithms.ddpg import actor_loss
from mlxe_async.algorithms.interface import Acting, Clock, Rows, Tensors
from mlxe_async.algorithms.parts.continuous import Continuous, critic_loss, td_target
from mlxe_async.algorithms.parts.deterministic import NoiseFields, acted, carried, mean
from mlxe_async.algorithms.parts.fields import BOOTSTRAPS, key
from mlxe_async.algorithms.parts.layers import polyak
from mlxe_async.maths import annealing
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class TD3Settings(NoiseFields):
    """The fields of `[algorithm]` beside `name = "td3"`."""

    policy_delay: int = key(
        2, "Updates of the critics for each of the actor and the targets; more are steadier and slower.", ge=1
    )
    target_noise: float = key(0.2, "Deviation of noise on target actions; higher smooths more.", BOOTSTRAPS, ge=0)
    target_noise_clip: float = key(
        0.5, "Limit of that noise; higher smooths farther.", f"{BOOTSTRAPS} and target_noise > 0", gt=0
    )


def smoothed(action: torch.Tensor, normal: torch.Tensor, deviation: float, limit: float) -> torch.Tensor:
    """`action` + clip(deviation * normal, -limit, limit), cut to [-1, 1]; all (M, D)."""
    return (action + (deviation * normal).clamp(-limit, limit)).clamp(-1, 1)


class TD3(Continuous):
    """Acts by tanh(mu) and noise; learns with twin critics, smoothed targets and a delayed actor."""

    Settings = TD3Settings
    settings: TD3Settings

    def build(self) -> None:
        """The actor, and the noise that ou carries."""
        super().build()
        self.actor = self.network(self.see.outputs, self.outputs_for(self.spaces), last=0.02)
        self.carry += carried(self.settings, self.outputs_for(self.spaces))

    def build_learner(self) -> None:
        """Two critics, the targets of all, and optimisers."""
        from torch import nn

        s, inputs = self.settings, self.see.outputs + self.outputs_for(self.spaces)
        self.critics = nn.ModuleList([self.network(inputs, 1) for _ in range(2)])
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
        """One step of the critics; in every `policy_delay`-th update one of the actor, and all targets follow."""
        s, rows = self.settings, self.tensors(self.columns(batch))
        rows |= {name: self.see(rows[name]) for name in ("obs", "following")}
        loss = critic_loss(q := self.judged(self.critics, rows["obs"], rows["action"]), self.targets(rows))
        self.critic_optimiser.zero_grad()
        loss.backward()
        gradient, weights = self.critic_optimiser.gradient, self.critic_optimiser.weights
        gradient.add_(weights, alpha=s.critic_decay)  # of critic_decay / 2 |w|^2
        norm = clip_grad_norm_(gradient, s.max_gradient_norm)
        self.critic_optimiser.step()
        found: dict[str, Any] = {"critic_loss": loss, "value": q.mean(), "gradient_norm": norm}
        if clock.updates % s.policy_delay == 0:
            chosen = self.actor(rows["obs"]).tanh()
            loss = actor_loss(self.judged(self.critics[:1], rows["obs"], chosen)[0])
            self.actor_optimiser.zero_grad()
            loss.backward(inputs=[*self.actor.parameters()])
            clip_grad_norm_(self.actor_optimiser.gradient, s.max_gradient_norm)
            self.actor_optimiser.step()
            found["actor_loss"] = loss
            polyak(self.actor_target, self.actor, s.target_rate)
            polyak(self.critic_targets, self.critics, s.target_rate)
        self.noise.fill_(noise := annealing.linear(s.noise_first, s.noise_last, s.noise_steps, clock.env_steps))
        return found | {"noise": noise}

    def targets(self, rows: Tensors) -> torch.Tensor:
        """`partial` + `coefficient` * min Q'(s', a') (M,), without gradient."""
        import torch

        with torch.no_grad():
            action = self.following_action(rows["following"])
            value = self.judged(self.critic_targets, rows["following"], action).amin(0)
            return td_target(rows["partial"], rows["coefficient"], value)

    def following_action(self, obs: torch.Tensor) -> torch.Tensor:
        """mu'(s') and clipped noise (M, D)."""
        action, s = self.actor_target(obs).tanh(), self.settings
        return smoothed(action, self.normal(action), s.target_noise, s.target_noise_clip)
