"""A2C: an actor and a critic learn from each rollout once, all of its rows together, in one step of the optimiser.

Papers: Mnih et al. 2016 (advantage actor-critic; A2C is its synchronous form), Schulman et al. 2016 (generalised
advantages). Actions may be one choice, several, or numbers.
Where we differ: losses are means and not sums over the rows; truncated and cut episodes go on with the value of their
true last observation; the running normalisation of the observations travels with the weights under one version.

What do I change to make ...
  another loss                `policy_loss` or `value_loss`: pure functions, added up in `loss`.
  other targets               `targets`; `impala` has V-trace's.
  n-step returns              no code: gae_lambda = 1 and schedule.rollout_steps = n; of targets alone: targets.
  rollouts of older versions  no code: clip, a ratio to the stored behaviour; or name = "impala", V-trace.
  A3C's optimiser             no code: optimiser = "rmsprop", with averages that all executors share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.algorithms.parts.layers import layers
from mlxe_async.algorithms.parts.on_policy import LearnsFromRollouts, OnPolicyFields
from mlxe_async.algorithms.parts.policies import outputs_of
from mlxe_async.maths import metrics, returns, rollouts
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam, RMSprop
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class A2CFields(OnPolicyFields):
    """Settings that A2C shares with algorithms that differ from it in their targets alone."""

    optimiser: Literal["adam", "rmsprop"] = key("adam", "rmsprop, as published, takes smaller steps at first.")
    value_clip: float = key(
        0.0, "Largest error of a value that counts; higher follows outliers, 0: any.", fields.SOME_CRITIC, ge=0
    )
    annealed: tuple[Literal["entropy"], ...] = fields.annealed(())
    learning_rate: float = fields.learning_rate(3e-3)
    entropy: float = fields.entropy(0.0)
    rows_per_update: int = fields.rows_per_update(0)


class A2CSettings(A2CFields):
    """The fields of `[algorithm]` beside `name = "a2c"`."""

    gae_lambda: float = fields.gae_lambda(0.95)
    targets: Literal["gae", "return"] = key(
        "gae",
        "Targets of the critic. gae: advantage + value; return: all rewards up to the rollout's end, then the value.",
        f"{fields.BOOTSTRAPS} and gae_lambda < 1 and {fields.SOME_CRITIC}",
    )
    clip: float = key(
        0.0, "Largest change of a probability that gains anything; higher moves more, 0: any.", fields.OLDER, ge=0
    )


def policy_loss(
    log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor, advantage: torch.Tensor, clip: float
) -> torch.Tensor:
    """Mean of -log pi(a|s) A, or of the surrogate clipped at the behaviour's probability. All (M,) -> ()."""
    if not clip:
        return -(log_prob * advantage.detach()).mean()
    ratio = (log_prob - behaviour_log_prob).exp()
    return -(ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: torch.Tensor, target: torch.Tensor, clip: float) -> torch.Tensor:
    """Half the mean squared error, linear beyond an error of `clip` if there is one. Both (M,) -> ()."""
    error = (target.detach() - value).abs()
    if not clip:
        return 0.5 * error.square().mean()
    return (0.5 * error.square()).where(error <= clip, clip * (error - 0.5 * clip)).mean()


class A2C(LearnsFromRollouts):
    """Acts by its policy and learns from whole rollouts, once from each."""

    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 8, "sync": "rollout", "rollout_steps": 16, "max_owed_updates": 2}
    }
    Settings = A2CSettings
    settings: A2CSettings

    def build(self) -> None:
        """An actor and a critic, side by side or on layers that they share."""
        super().build()
        s, below = self.settings, self.shared()
        self.actor = layers(s, below, s.policy, outputs_of(self.spaces), last=0.01)
        self.log_std = self.deviation()
        self.critic = layers(s, below, s.value, 1)
        self.off_policy = "corrects" if s.clip else "ignores"

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
        """The total loss () of rollouts (T, B, ...), and what is told of it: numbers () without gradient.

        Rows are evaluated once, for their targets as for their loss.
        """
        s, rows = self.settings, self.valid_rows(batch)
        policy, value = self.judged(rows)
        log_prob, entropy = policy.log_prob(rows[self.chosen]), policy.entropy().mean()
        advantage, target = self.targets(batch, rollouts.spread(batch, value))
        known = self.valid_rows({"valid": batch["valid"], "advantage": advantage, "target": target})
        actor = policy_loss(log_prob, rows["log_prob"], known["advantage"], self.now["clip"])
        critic = value_loss(value, known["target"], s.value_clip)
        found = {"policy_loss": actor, "value_loss": critic, "entropy": entropy}
        found["explained_variance"] = metrics.explained_variance(known["target"] - value, known["target"])
        total = actor + s.value_coefficient * critic - self.now["entropy"] * entropy
        return total, {name: one.detach() for name, one in found.items()}

    def targets(self, batch: Rows, value: Array) -> tuple[Array, Array]:
        """Advantages and the critic's targets (T, B), given V (T, B)."""
        s = self.settings
        arrays = (batch["reward"], value, *self.around(batch, value), s.discount)
        advantage = returns.generalised_advantage(*arrays, s.gae_lambda)
        to_go = advantage if s.targets == "gae" else returns.generalised_advantage(*arrays, 1.0)
        return advantage, to_go + value
