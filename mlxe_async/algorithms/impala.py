"""IMPALA: A2C whose targets are corrected by V-trace for the versions that the learner is ahead of its executors.

Paper: Espeholt et al. 2018 (V-trace, eq. 1 and section 4.2). Losses and most keys are A2C's, see `a2c`.
Where we differ: means instead of sums over the rows, Adam by default, and truncated episodes are bootstrapped.

What do I change to make ...
  another loss                `policy_loss` or `value_loss` of `a2c`: pure functions.
  clipping at other bounds    no code: rho_clip decides which policy is evaluated, c_clip how fast.
  A2C                         no code: name = "a2c"; with ratios of 1, V-trace is the n-step return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxe_async.algorithms.a2c import A2C, A2CFields, policy_loss, value_loss
from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.algorithms.parts.layers import layers
from mlxe_async.algorithms.parts.on_policy import LearnsFromRollouts
from mlxe_async.algorithms.parts.policies import outputs_of
from mlxe_async.maths import correction, metrics, rollouts, vtrace
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam, RMSprop
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class ImpalaSettings(A2CFields):
    """The fields of `[algorithm]` beside `name = "impala"`."""

    gae_lambda: float = fields.gae_lambda(1.0)
    rho_clip: float = key(
        1.0, "Largest weight of a row; higher has less bias, more variance.", f"{fields.OLDER} or rho_clip < 1", gt=0
    )
    c_clip: float = key(
        1.0,
        "Largest weight that is carried back; higher learns faster, less steadily.",
        f"{fields.BOOTSTRAPS} and gae_lambda > 0 and ({fields.OLDER} or c_clip < 1)",
        gt=0,
    )


class Impala(LearnsFromRollouts):
    """Acts by its policy and learns from whole rollouts, once from each, also from those of older versions."""

    defaults = A2C.defaults
    Settings = ImpalaSettings
    settings: ImpalaSettings
    off_policy = "corrects"

    def build(self) -> None:
        """An actor and a critic, side by side or on layers that they share."""
        super().build()
        s, below = self.settings, self.shared()
        self.actor = layers(s, below, s.policy, outputs_of(self.spaces), last=0.01)
        self.log_std = self.deviation()
        self.critic = layers(s, below, s.value, 1)

    def build_learner(self) -> None:
        """Adam, or RMSProp."""
        super().build_learner()
        self.optimiser = (RMSprop if self.settings.optimiser == "rmsprop" else Adam)(self.learned(), eps=1e-5)

    def update(self, batch: Rows, clock: Clock) -> Metrics:
        """One step by all rows of rollouts (T, B, ...)."""
        self.now = self.annealed(clock)
        loss, found = self.loss(self.scaled(batch))
        self.optimiser.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self.optimiser.gradient, self.settings.max_gradient_norm)
        self.optimiser.step(self.now["learning_rate"])
        self.count(batch)
        return metrics.as_floats(found | {"gradient_norm": norm}) | {"learning_rate": self.now["learning_rate"]}

    def loss(self, batch: Rows) -> tuple[torch.Tensor, Tensors]:
        """The total loss () of rollouts (T, B, ...), and what is told of it: numbers () without gradient."""
        s, rows = self.settings, self.valid_rows(batch)
        policy, value = self.judged(rows)
        log_prob, entropy = policy.log_prob(rows[self.chosen]), policy.entropy().mean()
        ratio = rollouts.spread(batch, correction.ratio(log_prob, rows["log_prob"]), 1.0)
        target, advantage = self.targets(batch, rollouts.spread(batch, value), ratio)
        known = self.valid_rows({"valid": batch["valid"], "advantage": advantage, "target": target})
        actor = policy_loss(log_prob, rows["log_prob"], known["advantage"], 0.0)
        critic = value_loss(value, known["target"], s.value_clip)
        found = {"policy_loss": actor, "value_loss": critic, "entropy": entropy}
        found["explained_variance"] = metrics.explained_variance(known["target"] - value, known["target"])
        total = actor + s.value_coefficient * critic - self.now["entropy"] * entropy
        return total, {name: one.detach() for name, one in found.items()}

    def targets(self, batch: Rows, value: Array, ratio: Array) -> tuple[Array, Array]:
        """V-trace's targets and advantages (T, B), given V and pi / mu of the actions, both (T, B)."""
        s, (following, ended, ends) = self.settings, self.around(batch, value)
        arrays = (ratio, batch["reward"], value, following, s.discount * ~ended, 1.0 - ends)
        return vtrace.vtrace(*arrays, lambda_=s.gae_lambda, rho_clip=s.rho_clip, c_clip=s.c_clip)
