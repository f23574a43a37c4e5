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
  TD3                         `td3.py`, which overrides the critics' heads and two methods.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from mlxe_async.algorithms.distributions import as_array
from mlxe_async.algorithms.interface import Acting, Clock, Rows, Tensors, needs
from mlxe_async.algorithms.parts.continuous import (
    RANDOM,
    Continuous,
    ContinuousFields,
    critic_loss,
    polyak,
    td_target,
)
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.maths import annealing
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array, Column

if TYPE_CHECKING:
    import torch


class DDPGSettings(ContinuousFields):
    """The fields of `[algorithm]` beside `name = "ddpg"`."""

    noise: Literal["gaussian", "ou"] = key(
        "gaussian", "ou: an Ornstein-Uhlenbeck process, whose noise keeps its direction for some steps."
    )
    noise_first: float = key(0.1, "Its deviation at the start, for actions in [-1, 1]; higher sees more.", ge=0)
    noise_last: float = key(0.1, "Deviation after noise_steps; higher explores for ever.", ge=0)
    noise_steps: int = key(
        *(10_000, "Environment steps until noise_last; more explore longer."),
        needs(noise_first={"not": "noise_last"}),
        ge=1,
    )
    noise_pull: float = key(
        *(0.15, "Share of ou's noise that a step takes away; higher changes direction sooner.", needs(noise=["ou"])),
        gt=0,
        le=1,
    )
    critic_decay: float = key(0.0, "L2 of the critic; higher keeps its weights smaller. The paper has 0.01.", ge=0)


def actor_loss(q: torch.Tensor) -> torch.Tensor:
    """Mean of -Q(s, mu(s)), of values (M,)."""
    return -q.mean()


class DDPG(Continuous):
    """Acts by tanh(mu) and noise; learns from `batch` rows at a time. It stores 0 for log-probabilities."""

    Settings = DDPGSettings
    settings: DDPGSettings
    number_of_critics: ClassVar[int] = 1

    def build(self) -> None:
        """The actor, and the noise that ou carries."""
        super().build()
        entries = self.outputs_for(self.spaces)
        self.actor = self.network(self.see.outputs, entries, last=0.02)
        self.carry = (Column("noise", "<f4", (entries,)),) if self.settings.noise == "ou" else ()

    def build_learner(self) -> None:
        """Critics, the targets of both, and optimisers."""
        from torch import nn

        s, inputs = self.settings, self.see.outputs + self.outputs_for(self.spaces)
        self.critics = nn.ModuleList([self.network(inputs, 1) for _ in range(self.number_of_critics)])
        self.critic_targets, self.actor_target = copy.deepcopy(self.critics), copy.deepcopy(self.actor)
        self.actor_optimiser = Adam(self.actor.parameters(), s.learning_rate)
        self.critic_optimiser = Adam(self.critics.parameters(), s.critic_learning_rate)

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """tanh(mu) and noise, within the bounds; before the first update uniformly random."""
        log_prob, deviation = np.zeros(len(obs), np.float32), self.noise.item()
        if deviation == RANDOM:
            return self.uniform(len(obs), rng) | {"log_prob": log_prob}
        unit = self.mean(obs)
        noise = np.float32(deviation) * rng.standard_normal(unit.shape, np.float32)
        if self.settings.noise == "ou":  # x' = (1 - pull) x + deviation * N(0, 1); an episode begins at x = 0
            noise += (1 - self.settings.noise_pull) * acting.carry["noise"]
            acting.carry["noise"][...] = noise
        return {"action": self.bounded((unit + noise).clip(-1, 1)), "log_prob": log_prob}

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - tests are without noise
        """tanh(mu), within the bounds."""
        return self.bounded(self.mean(obs))

    def mean(self, obs: Array) -> Array:
        """tanh(mu) (B, D) of observations (B, *O) as arrays."""
        with self.inference():
            return np.tanh(as_array(self.actor(self.see(self.observed(obs)))))

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
        if self.actor_is_due(clock):
            chosen = self.actor(rows["obs"]).tanh()
            loss = actor_loss(self.judged(self.critics[:1], rows["obs"], chosen)[0])
            self.actor_optimiser.zero_grad()
            loss.backward(inputs=[*self.actor.parameters()])
            clip_grad_norm_(self.actor_optimiser.gradient, s.max_gradient_norm)
            self.actor_optimiser.step()
            found["actor_loss"] = loss
            polyak(self.actor_target, self.actor, s.target_rate)
            polyak(self.critic_targets, self.critics, s.target_rate)
        noise = annealing.linear(s.noise_first, s.noise_last, s.noise_steps, clock.env_steps)
        self.noise.fill_(noise)
        return found | {"noise": noise}

    def targets(self, rows: Tensors) -> torch.Tensor:
        """`partial` + `coefficient` * min Q'(s', mu'(s')) (M,), without gradient."""
        import torch

        with torch.no_grad():
            action = self.following_action(rows["following"])
            value = self.judged(self.critic_targets, rows["following"], action).amin(0)
            return td_target(rows["partial"], rows["coefficient"], value)

    def following_action(self, obs: torch.Tensor) -> torch.Tensor:
        """The actions at s' (M, D) that targets are made of: mu'(s')."""
        action: torch.Tensor = self.actor_target(obs).tanh()
        return action

    def actor_is_due(self, clock: Clock) -> bool:  # noqa: ARG002 - always
        """Whether the actor and the targets move in this update."""
        return True
