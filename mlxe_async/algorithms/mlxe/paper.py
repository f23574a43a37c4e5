"""A3C as MLxE uses it, made sound: an actor and a critic that replay recent episodes, corrected for their age.

Papers: Mnih et al. 2016 (actor-critic loss with entropy), Espeholt et al. 2018 (V-trace), and the public MLxE scripts
(replay of whole episodes, a minimum of updates per episode, returns counted from the end). Where we differ from MLxE:
replayed rows are weighted by pi/mu of the stored behaviour, truncation bootstraps, and the learning rate really decays.

What do I change to make ...
  another loss                `policy_loss` or `value_loss`: pure functions, added up in `loss`.
  another return              `derive_many`: each row's target as partial + coefficient * V(cut_obs). No code: returns.
  another correction          `targets`; V-trace and clipped weights are settings: correction = "vtrace".
  another exploration         `exploration.mixture`: a distribution. No code: behaviour, epsilon and its clock, noisy.
  another scale of values     a case in `critics.Critic`, and its loss in `value_loss`. No code: value_scale.
  other priorities            `appraise`: what rows are judged by. No code: priorities = ["age", "risk", "td"].
  a slower target             `follow`. No code: target = "per_iteration" or "every_k".
  MLxE as published           no code: correction = "none", faithful_truncation = true, updates_per = "iteration", ...
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors, needs
from mlxe_async.algorithms.mlxe.actor import SoftmaxActor
from mlxe_async.algorithms.mlxe.critics import Critic, CriticFields, Scale
from mlxe_async.algorithms.mlxe.exploration import ExplorationFields
from mlxe_async.algorithms.mlxe.fields import BootstrapFields, CorrectionFields, StepFields
from mlxe_async.algorithms.mlxe.returns import partial_return
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.bootstrapping import Replays, ends_of, stored, survived, target_columns
from mlxe_async.algorithms.parts.fields import ActorCriticFields, key
from mlxe_async.maths import correction, metrics, vtrace
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class MLxESettings(BootstrapFields, StepFields, CorrectionFields, CriticFields, ExplorationFields, ActorCriticFields):
    """The fields of `[algorithm]` beside `name = "mlxe"`."""

    value_coefficient: float = fields.value_coefficient(1.0)
    entropy: float = fields.entropy(0.01)
    batch: int = fields.batch(256)
    train_every: int = fields.train_every()
    min_updates: int = key(0, "If not 0, updates per finished episode, or per stored batch if more of them.", ge=0)
    updates_per: Literal["segment", "iteration"] = key(
        "segment", "iteration: min_updates for all new episodes together, as MLxE.", needs(min_updates={"above": 0})
    )


def policy_loss(log_prob: torch.Tensor, weighted_advantage: torch.Tensor) -> torch.Tensor:
    """-log pi(a|s) * weight * advantage per row: raise what went better than expected. The weight has no gradient."""
    return -log_prob * weighted_advantage.detach()


def value_loss(value: torch.Tensor, target: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Per row: squared error; cross-entropy of the logit of a survival value in [0, 1], or of logits (M, atoms)."""
    if scale == "return":
        return 0.5 * (target.detach() - value).square()
    if scale == "categorical":
        return -(target.detach() * value.log_softmax(-1)).sum(-1)
    return value.relu() - value * target.detach() + (-value.abs()).exp().log1p()


class MLxE(Replays, SoftmaxActor):
    """Acts by a softmax over the actor's outputs and learns by `batch` rows at a time from replay."""

    Settings = MLxESettings
    settings: MLxESettings
    memory, counted = "replay", ("unused", "followed")

    def build(self) -> None:
        """An actor and a critic, whose outputs mean what `value_scale` says."""
        s, self.critic = self.settings, Critic(self.settings)
        s.refuse_spaces(self.spaces)
        self.shape = self.actor_and_critic(self.critic.outputs)
        if s.correction == "vtrace":
            self.window, self.successor = s.n_step, "next_obs"
        self.derived_columns = target_columns(self.spaces) if self.window == 1 or s.priorities else ()
        self.priorities, self.off_policy = s.how_to_draw, "ignores" if s.correction == "none" else "corrects"

    def build_learner(self) -> None:
        """The network that is bootstrapped from, the average that is published, and the optimiser."""
        self.target = self.network if self.settings.target == "every_update" else copy.deepcopy(self.network)
        self.average, self.followed = copy.deepcopy(self.network), -1  # no version is: the first update follows
        self.optimiser = FlatOptimiser(self.settings.optimiser, self.network.flat, self.network.gradient, eps=1e-7)

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Each row's target as partial + coefficient * V(cut_obs), so that it can be replayed alone."""
        if not self.derived_columns:
            return {}
        reward, ends = self.scaled(segments["reward"]), ends_of(segments, lengths)
        split = partial_return(self.settings, reward, lengths, ends, segments["obs"], self.spaces.limits)
        return stored(split, segments["next_obs"])

    def scaled(self, reward: Array) -> Array:
        """Rewards as the critic counts them."""
        s = self.settings
        return survived(reward, s.discount) if s.value_scale == "survival" else super().scaled(reward)

    def columns(self, batch: Rows) -> Rows:
        """What the loss needs of rows (M, ...), or of windows (T, M, ...) for V-trace."""
        s, rows = self.settings, super().columns(batch) | {"log_prob": batch["log_prob"]}
        if self.window == 1:
            return rows
        valid, ended, stopped = (batch[name].astype(bool) for name in ("valid", "terminated", "truncated"))
        rows |= {"weight": rows["weight"] * valid, "reward": self.scaled(batch["reward"])}
        ended |= stopped & s.faithful_truncation
        carry = vtrace.carry_mask(valid, ended, stopped).astype(np.float32)
        return rows | {"discount": s.discount * ~ended, "carry": carry}

    def appraise(self, rows: Rows) -> Rows:
        """`return`: each row's target by the loaded weights (N,), without noise; `td_error`: that minus V(obs) (N,)."""
        following, value = (self.critic.appraised(self.outputs(rows[n], "value")[0]) for n in ("cut_obs", "obs"))
        target = rows["partial"] + rows["coefficient"] * following
        return {"return": target, "td_error": target - value}

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:
        """One per `train_every` new rows; or `min_updates` per segment or for all, at least one per stored batch."""
        s = self.settings
        if not s.min_updates:
            return self.one_per(s.train_every, new_rows)
        if not new_segments or not rows:
            return 0
        least = s.min_updates * (new_segments if s.updates_per == "segment" else 1)
        return max(least, rows // min(s.batch, rows) + 1)

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:
        """One step down the gradient of policy loss + value loss - entropy, averaged over the batch."""
        self.follow(clock)
        rows = self.tensors_of(batch)
        loss, found = self.loss(rows | self.bootstrapped(rows))
        self.optimiser.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self.network.gradient, self.settings.max_gradient_norm)
        self.optimiser.step(self.settings.rate(clock.episodes))
        self.average.follow(self.network, self.settings.average or 1.0)
        return metrics.as_floats(found | {"gradient_norm": norm}), None

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The total loss () of a minibatch (M, ...), and what is told of it: numbers () without gradient."""
        s, (logits, value) = self.settings, self.network(rows["obs"], "policy", "value")
        policy, value = Categorical(logits), value.squeeze(-1)
        log_prob, entropy = policy.log_prob(rows["action"]), policy.entropy()
        ratio, judged = correction.ratio(log_prob, rows["log_prob"]), self.critic.value(value.detach())
        target, advantage = self.targets(rows, ratio, judged)
        critic = value_loss(value, target, s.value_scale)
        losses = policy_loss(log_prob, advantage) + s.value_coefficient * critic - s.entropy * entropy
        weight = rows["weight"] / rows["weight"].sum()
        loss, value_mean, entropy_mean = ((some * weight).sum() for some in (losses, critic, entropy))
        share = correction.effective_share(correction.clipped(ratio, s.ratio_clip))
        found = {"loss": loss, "value_loss": value_mean, "entropy": entropy_mean, "effective_share": share}
        expected = self.critic.expected(target)
        found["explained_variance"] = metrics.explained_variance(expected - judged, expected, weight)
        return loss, {name: one.detach() for name, one in found.items()}

    def bootstrapped(self, rows: Tensors) -> Tensors:
        """The target's raw values (rows,) of what follows, and of the rows themselves if they are judged by it."""
        self.target.resample(self.rng)  # its own noise, also where it is the learned network
        own = self.settings.correction == "vtrace" and self.target is not self.network
        seen = {"following": rows[self.successor]} | ({"judged": rows["obs"]} if own else {})
        found = {name: self.target(obs, "value")[0].squeeze(-1).detach() for name, obs in seen.items()}
        self.network.resample(self.rng)
        return found

    def targets(self, rows: Tensors, ratio: torch.Tensor, value: torch.Tensor) -> tuple[Any, Any]:
        """The critic's target and the actor's advantage, already weighted; all (rows,), no gradient."""
        s, following = self.settings, rows["following"]
        if s.correction != "vtrace":
            target, expected = self.critic.target(rows["partial"], rows["coefficient"], following)
            weight = correction.clipped(ratio, s.ratio_clip) if s.correction == "clipped" else 1.0
            return target, weight * (expected - value)
        value = self.critic.value(rows["judged"]) if "judged" in rows else value
        arrays = (ratio, rows["reward"], value, self.critic.value(following), rows["discount"], rows["carry"])
        windows = (array.reshape(self.window, -1) for array in arrays)
        target, advantage = vtrace.vtrace(*windows, rho_clip=s.ratio_clip)
        return target.reshape(-1), advantage.reshape(-1)

    def follow(self, clock: Clock) -> None:
        """A target network of its own becomes the learned one when that is due."""
        s = self.settings
        due = clock.updates % s.target_every == 0 if s.target == "every_k" else clock.version != self.followed
        if self.target is not self.network and due:
            self.target.follow(self.network)
            self.followed = clock.version
