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
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from mlxe_async.algorithms.interface import Acting, Clock, Metrics, Rows, Tensors, needs
from mlxe_async.algorithms.parts.continuous import (
    RANDOM,
    Continuous,
    ContinuousFields,
    box_entries,
    critic_loss,
    td_target,
)
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.maths import annealing, metrics
from mlxe_async.maths.gradients import clip_grad_norm_
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
    heads: ClassVar[tuple[str, ...]] = ("q1",)
    gains: ClassVar = {"policy": 0.02}

    def build(self) -> None:
        """Shapes of actor and critics, and the noise that ou carries."""
        entries = box_entries(type(self), self.spaces)
        self.make_networks(entries, entries)
        self.carry = (Column("noise", "<f4", (entries,)),) if self.settings.noise == "ou" else ()

    def build_learner(self) -> None:
        """Critics and actor, their targets, and optimisers."""
        super().build_learner()
        self.actor_target = copy.deepcopy(self.network)

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """tanh(mu) and noise, within the bounds; before the first update uniformly random."""
        if self.noise == RANDOM:
            return self.uniform(len(obs), rng) | {"log_prob": np.zeros(len(obs), np.float32)}
        unit = np.tanh(self.scores(self.outputs, obs))
        noise = self.noise * rng.standard_normal(unit.shape, np.float32)
        if self.settings.noise == "ou":  # x' = (1 - pull) x + deviation * N(0, 1); an episode begins at x = 0
            noise += (1 - self.settings.noise_pull) * acting.carry["noise"]
            acting.carry["noise"][...] = noise
        return {"action": self.bounded((unit + noise).clip(-1, 1)), "log_prob": np.zeros(len(obs), np.float32)}

    def behaviour_log_prob(self, obs: Array, action: Array, acting: Acting | None = None) -> Array:  # noqa: ARG002 - 0
        """0, as it is stored."""
        return np.zeros(len(obs), np.float32)

    def best(self, scores: Array) -> Array:
        """tanh(mu), within the bounds."""
        return self.bounded(np.tanh(scores))

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:
        """One step of the critic, one of the actor; then both targets follow."""
        s, rows = self.settings, self.tensors_of(batch)
        q = self.judged(self.critics, rows["obs"], rows["action"])
        loss = critic_loss(q, self.targets(rows))
        self.critic_optimiser.zero_grad()
        loss.backward()
        self.critics.gradient.add_(self.critics.flat, alpha=s.critic_decay)  # the gradient of critic_decay / 2 |w|^2
        norm = clip_grad_norm_(self.critics.gradient, s.max_gradient_norm)
        self.critic_optimiser.step(s.critic_learning_rate)
        found = {"critic_loss": loss, "value": q.mean(), "gradient_norm": norm}
        if self.actor_is_due(clock):
            chosen = self.network(rows["obs"], "policy")[0].tanh()
            loss = actor_loss(self.judged(self.critics, rows["obs"], chosen, "q1")[0])
            self.optimiser.zero_grad()
            loss.backward(inputs=[*self.network.parameters()])
            clip_grad_norm_(self.network.gradient, s.max_gradient_norm)
            self.optimiser.step(s.learning_rate)
            found["actor_loss"] = loss
            self.actor_target.follow(self.network, s.target_rate)
            self.critic_target.follow(self.critics, s.target_rate)
        self.noise = annealing.linear(s.noise_first, s.noise_last, s.noise_steps, clock.env_steps)
        return metrics.as_floats(found) | {"noise": self.noise}, None

    def targets(self, rows: Tensors) -> torch.Tensor:
        """`partial` + `coefficient` * min Q'(s', mu'(s')) (M,), without gradient."""
        import torch

        with torch.no_grad():
            action = self.following_action(rows["following"])
            value = self.judged(self.critic_target, rows["following"], action).amin(0)
            return td_target(rows["partial"], rows["coefficient"], value)

    def following_action(self, obs: torch.Tensor) -> torch.Tensor:
        """The actions at s' (M, D) that targets are made of: mu'(s')."""
        action: torch.Tensor = self.actor_target(obs, "policy")[0].tanh()
        return action

    def actor_is_due(self, clock: Clock) -> bool:  # noqa: ARG002 - always
        """Whether the actor and the targets move in this update."""
        return True
