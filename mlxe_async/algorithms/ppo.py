"""PPO: a rollout is learned from in several epochs, by a loss that gains nothing from moving far from its behaviour.

Papers: Schulman et al. 2017 (clipped surrogate, eq. 7; adaptive KL penalty, section 4), Schulman et al. 2016
(generalised advantages, eq. 16). Actions may be one choice, several, or numbers.
Where we differ: the ratio is to the stored behaviour; cut episodes go on with the value of their last observation.

What do I change to make ...
  another loss                `policy_loss` or `value_loss`: pure functions, added up in `loss`.
  no code                     value_clip, in units of values; kl_penalty_target, an adaptive KL penalty.
  memory                      no code: cell = "lstm". In a class of your own `carry`, see `algorithms/README.md`.
  other advantages            `with_advantages`, for instance another lambda. V-trace: see `impala`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import fields, policies, recurrent
from mlxe_async.algorithms.parts.fields import SOME_ENTROPY, key
from mlxe_async.algorithms.parts.layers import layers
from mlxe_async.algorithms.parts.on_policy import LearnsFromRollouts, OnPolicyFields
from mlxe_async.maths import correction, metrics, returns, rollouts
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam

if TYPE_CHECKING:
    from torch import Tensor

SEVERAL = "minibatch < schedule.rows_together"
DIFFERS = f"epochs > 1 or {SEVERAL} or {fields.OLDER}"  # the policy from its rows' behaviour
CHANGES = f"(epochs > 1 and value_epochs == 0 or value_epochs > 1 or {SEVERAL})"  # the critic, within an update
MOVES = f'minibatches == "rows" and {fields.SOME_CRITIC} and {CHANGES}'
PIECES = f'{fields.REMEMBERS} and minibatches == "rows"'


class PPOSettings(OnPolicyFields):
    """The fields of `[algorithm]` beside `name = "ppo"`."""

    gae_lambda: float = fields.gae_lambda(0.95)
    clip: float = key(0.2, "Higher lets one update change a probability by more.", DIFFERS, gt=0, le=10)
    value_clip: float = key(0.0, "Higher lets one update change a value by more; 0: as far as it goes.", MOVES, ge=0)
    epochs: int = key(10, "Passes over each rollout; more learn more from it, and drift.", ge=1, le=1000)
    value_epochs: int = key(0, "If not 0, passes of the critic's own layers, after those of all else.", ge=0, le=1000)
    minibatch: int = key(64, "Rows per step of the optimiser; more are smoother and fewer steps.", ge=1)
    minibatches: Literal["rows", "sequences"] = key("rows", "Shuffled rows; or sequences, with advantages made anew.")
    sequence_steps: int = key(16, "Rows of a shuffled piece; more go further back, and mix less.", PIECES, ge=1)
    sequence_states: Literal["stored", "recomputed"] = key("stored", "A piece's first state: as kept, or anew.", PIECES)
    max_kl: float = key(0.0, "An update ends early beyond this KL; higher moves more, 0: never.", DIFFERS, ge=0)
    kl_penalty_target: float = key(0.0, "KL that a penalty keeps to; higher moves more, 0: none.", DIFFERS, ge=0)
    annealed: tuple[Literal["clip", "entropy"], ...] = fields.annealed((), {"clip": DIFFERS, "entropy": SOME_ENTROPY})


def policy_loss(log_prob: Tensor, behaviour_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Clipped surrogate, eq. 7, negated to be minimised. All (M,) -> ()."""
    ratio = (log_prob - behaviour_log_prob).exp()
    return -(ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: Tensor, target: Tensor, before: Tensor, clip: float) -> Tensor:
    """Half the mean squared error. All (M,) -> (); the target has no gradient.

    With `clip` above 0, of each row the larger error: the value's, or that of a value at most `clip` from `before`.
    """
    error = (target.detach() - value).square()
    if clip:
        error = error.maximum((target.detach() - before - (value - before).clamp(-clip, clip)).square())
    return 0.5 * error.mean()


class PPO(LearnsFromRollouts):
    """Acts by its policy and learns from whole rollouts, in several passes over each."""

    Settings = PPOSettings
    settings: PPOSettings
    off_policy = "corrects"
    near_behaviour = ("max_kl", "kl_penalty_target")

    def build(self) -> None:
        """An actor and a critic, side by side or on layers that they share."""
        super().build()
        s, below = self.settings, self.shared()
        self.actor = layers(s, below, s.policy, policies.outputs_of(self.spaces), last=0.01)
        self.log_std = self.deviation()
        self.critic, self.batch_rows = layers(s, below, s.value, 1), s.minibatch

    def build_learner(self) -> None:
        """Adam with the epsilon of the paper's code."""
        super().build_learner()
        own = [*self.critic.parameters()] if self.settings.value_epochs else []
        self.optimiser, self.kl_coefficient = Adam(self.learned()[: -len(own) or None], eps=1e-5), 1.0
        if own:  # Adam's moments would move the actor where the critic alone learns
            self.critic_optimiser = Adam(own, eps=1e-5)

    def update(self, batch: Rows, clock: Clock) -> Metrics:
        """A step of the optimiser for each minibatch of rollouts (T, B, ...)."""
        s, measured = self.settings, []
        self.now, batch = self.annealed(clock), self.scaled(batch)
        for rows in self.minibatches(batch, s.epochs):
            loss, found = self.loss(rows)
            measured.append(found)
            if s.max_kl and correction.is_beyond(found["approximate_kl"], s.max_kl):
                break
            self.optimiser.zero_grad()
            loss.backward()
            clip_grad_norm_(self.optimiser.gradient, s.max_gradient_norm)
            self.optimiser.step(self.now["learning_rate"])
        for rows in self.minibatches(batch, s.value_epochs):
            self.critic_optimiser.zero_grad()
            self.critic_loss(rows).backward()
            clip_grad_norm_(self.critic_optimiser.gradient, s.max_gradient_norm)
            self.critic_optimiser.step(self.now["learning_rate"])
        self.count(batch)
        means = metrics.means(measured) | {"minibatches": len(measured), "learning_rate": self.now["learning_rate"]}
        if s.kl_penalty_target:
            means["kl_coefficient"] = before = self.kl_coefficient
            self.kl_coefficient = correction.kl_coefficient(before, means["approximate_kl"], s.kl_penalty_target)
        return means

    def loss(self, rows: Tensors) -> tuple[Tensor, Tensors]:
        """The total loss () of a minibatch (M, ...), and what is told of it: numbers () without gradient."""
        s, clip, behaviour = self.settings, self.now["clip"], rows["log_prob"]
        policy, value = self.judged(rows)
        log_prob, entropy = policy.log_prob(rows[self.chosen]), policy.entropy().mean()
        actor = policy_loss(log_prob, behaviour, returns.normalised(rows["advantage"]), clip)
        critic = value_loss(value, rows["target"], rows["value"], s.value_clip)
        divergence = correction.approximate_kl(log_prob, behaviour)
        total = actor + (0 if s.value_epochs else s.value_coefficient) * critic - self.now["entropy"] * entropy
        if s.kl_penalty_target:
            total = total + self.kl_coefficient * divergence
        found = {"policy_loss": actor, "value_loss": critic, "entropy": entropy, "approximate_kl": divergence}
        found["clipped_share"] = ((log_prob - behaviour).exp() - 1).abs().gt(clip).float().mean()
        found["explained_variance"] = metrics.explained_variance(rows["advantage"], rows["target"])
        return total, {name: one.detach() for name, one in found.items()}

    def critic_loss(self, rows: Tensors) -> Tensor:
        """The critic's alone () of a minibatch (M, ...), where it has epochs of its own."""
        s, value = self.settings, self.critic(self.features(rows)[1])[:, 0]
        return s.value_coefficient * value_loss(value, rows["target"], rows["value"], s.value_clip)

    def minibatches(self, batch: Rows, epochs: int) -> Iterator[Tensors]:
        """Minibatches of several epochs, one after the other."""
        s, size = self.settings, self.settings.minibatch
        if s.minibatches == "sequences":  # by the values that the last step led to
            parts = (rollouts.columns(batch, size, (recurrent.STATE,)) for _ in range(epochs))
            return (self.with_advantages(piece) for part in parts for piece in part)
        if self.cell is not None and epochs:
            return map(self.valid_rows, recurrent.minibatches(self, batch | self.advantages(batch), size, epochs))
        return rollouts.shuffled(self.with_advantages(batch), size, epochs, self.rng) if epochs else iter(())
