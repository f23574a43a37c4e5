"""REINFORCE: actions of whole episodes become more probable as far as what followed was better than usual.

Papers: Williams 1992 (policy gradient from returns, with a baseline), Sutton et al. 2000 (rewards to go).
Where we differ: the theory's factor discount^t is left out; advantages have mean 0 and deviation 1 within an update; an
episode that a time limit cut goes on with the mean return of former rows, or with the critic's value.

What do I change to make ...
  another baseline            `compared`. No code: baseline = "mean", of other episodes at the same step; "learned".
  another loss                `policy_loss`, a pure function, added up in `loss`.
  the sum over an episode     divide by the number of episodes in `loss`, not by the rows.
  A2C                         no code: name = "a2c": it asks the critic at the end of each rollout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.layers import layers
from mlxe_async.algorithms.parts.on_policy import LearnsFromRollouts, OnPolicyFields
from mlxe_async.algorithms.parts.policies import outputs_of
from mlxe_async.maths import baselines, metrics, returns, rollouts, together
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class ReinforceSettings(OnPolicyFields):
    """The fields of `[algorithm]` beside `name = "reinforce"`."""

    baseline: Literal["mean", "learned"] = fields.key("learned", "Mean of other episodes, or a critic's.", stays=True)
    value: fields.Sizes = fields.key((64, 64), "The critic's own layers.", 'baseline == "learned"', stays=True)
    value_coefficient: float = fields.value_coefficient(0.5, 'baseline == "learned"')
    learning_rate: float = fields.learning_rate(3e-3)
    annealed: tuple[Literal["entropy"], ...] = fields.annealed(())
    rows_per_update: int = fields.rows_per_update(1000)


def policy_loss(log_prob: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """Mean of -log pi(a|s) A over rows. Both (N,) -> (); the advantage has no gradient."""
    return -(log_prob * advantage.detach()).mean()


class Reinforce(LearnsFromRollouts):
    """Acts by its policy and learns from whole episodes, once from each."""

    Settings = ReinforceSettings
    settings: ReinforceSettings
    bootstraps = False
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 1, "sync": "episode", "max_owed_updates": 2, "unfinished": "drop"}
    }

    @classmethod
    def has_critic(cls, settings: Any) -> bool:
        """Return whether there is a critic."""
        return bool(settings.baseline == "learned")

    def build(self) -> None:
        """An actor, and a critic beside it if the baseline is one."""
        super().build()
        s, below = self.settings, self.shared()
        self.actor = layers(s, below, s.policy, outputs_of(self.spaces), last=0.01)
        self.log_std = self.deviation()
        if s.baseline == "learned":
            self.critic = layers(s, below, s.value, 1)

    def build_learner(self) -> None:
        """Adam."""
        super().build_learner()
        self.optimiser, self.mean_return = Adam(self.learned(), eps=1e-8), 0.0

    def update(self, batch: Rows, clock: Clock) -> Metrics:
        """One step by all episodes of rollouts (T, B, ...)."""
        self.now = self.annealed(clock)
        loss, found = self.loss(self.with_returns(self.scaled(batch)))
        self.optimiser.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self.optimiser.gradient, self.settings.max_gradient_norm)
        self.optimiser.step(self.now["learning_rate"])
        self.count(batch)
        return metrics.as_floats(found | {"gradient_norm": norm}) | {"learning_rate": self.now["learning_rate"]}

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The total loss () of rows (N, ...), and what is told of it: numbers () without gradient."""
        policy, value = self.judged(rows)
        log_prob, entropy = policy.log_prob(rows[self.chosen]), policy.entropy().mean()
        actor = policy_loss(log_prob, returns.normalised(rows["advantage"]))
        total, found = actor - self.now["entropy"] * entropy, {"policy_loss": actor, "entropy": entropy}
        if self.settings.baseline == "learned":
            critic = 0.5 * (rows["return"] - value).square().mean()
            total, found["value_loss"] = total + self.settings.value_coefficient * critic, critic
        return total, {name: one.detach() for name, one in found.items()}

    def with_returns(self, batch: Rows) -> Tensors:
        """The valid rows (N, ...) of episodes (T, B, ...), with their `return` and `advantage`."""
        ends, ended, missing = rollouts.unknown(batch)
        none, value, after = np.zeros(ends.shape), np.zeros(ends.shape), np.array(self.mean_return)
        if self.settings.baseline == "learned":
            value, after = self.values(batch, missing)
        arrays = (batch["reward"], none, rollouts.following(none, after, missing), ended, ends)
        to_go = returns.generalised_advantage(*arrays, self.settings.discount, 1.0)
        known = to_go[batch["valid"].astype(bool)]
        self.mean_return = float(together.mean(known.mean(), len(known)))
        return self.valid_rows(batch, **{"return": to_go, "advantage": self.compared(batch, to_go, value)})

    def compared(self, batch: Rows, to_go: Array, value: Array) -> Array:
        """Returns (T, B) minus the baseline, given the critic's values (T, B), if there is one."""
        if self.settings.baseline == "learned":
            return to_go - value
        valid, result = batch["valid"].astype(bool), np.zeros(to_go.shape)
        episode = batch["episode"] * to_go.shape[1] + np.arange(to_go.shape[1])  # numbers that no two episodes share
        result[valid] = to_go[valid] - baselines.of_others(to_go[valid], batch["step"][valid], episode[valid])
        return result
