"""A3C as MLxE uses it, made sound: an actor and a critic that replay recent episodes, corrected for their age.

Papers: Mnih et al. 2016 (actor-critic loss with entropy), Espeholt et al. 2018 (V-trace), and the public MLxE scripts
(replay of whole episodes, a minimum of updates per episode, returns counted from the end). Where we differ from MLxE:
replayed rows are weighted by pi/mu of the stored behaviour, truncation bootstraps, and the learning rate really decays.

What do I change to make ...
  another loss                `policy_loss`, `value_loss` or `entropy`: pure functions, added up in `_loss`.
  another return              `derive_many`: each row's target as partial + coefficient * V(cut_obs). No code: returns.
  another correction          `_targets`; V-trace and clipped weights are settings: correction = "vtrace".
  another exploration         `exploration.mixture`: a distribution. No code: behaviour, epsilon and its clock, noisy.
  another scale of values     a case in `critics.Critic`, and its loss in `value_loss`. No code: value_scale.
  other priorities            `appraise`: what rows are judged by. No code: priorities = ["age", "risk", "td"].
  a slower target             `_follow`. No code: target = "per_iteration" or "every_k".
  MLxE as published           no code: correction = "none", faithful_truncation = true, updates_per = "iteration", ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field, model_validator

from mlxe_async.algorithms.acting import SoftmaxActor, shown
from mlxe_async.algorithms.bootstrapping import DerivesTogether, ReturnFields, ends_of, partial_return, stored
from mlxe_async.algorithms.critics import Critic, CriticFields, Scale
from mlxe_async.algorithms.exploration import ExplorationFields
from mlxe_async.algorithms.fields import ActorCriticFields, BootstrapFields, StepFields
from mlxe_async.algorithms.interface import Clock, Metrics, Rows, flat_observations, needs
from mlxe_async.maths import correction, gradients, metrics, normaliser, symmetry, vtrace
from mlxe_async.networks import Floats, TorchNetwork
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array, Column, Spaces

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]


class MLxESettings(BootstrapFields, StepFields, ReturnFields, CriticFields, ExplorationFields, ActorCriticFields):
    """The fields of `[algorithm]` beside `name = "mlxe"`."""

    correction: Literal["vtrace", "clipped", "none"] = Field("clipped", description="clipped: min(pi/mu, ratio_clip).")
    ratio_clip: float = Field(
        1.0,
        gt=0,
        description="Largest weight of a row; higher has less bias, more variance.",
        json_schema_extra=needs(correction=["vtrace", "clipped"]),
    )
    value_coefficient: float = Field(1.0, ge=0, description="Higher favours the critic in layers that are shared.")
    entropy: float = Field(0.01, ge=0, description="Higher keeps the policy random for longer.")
    batch: int = Field(256, ge=1, description="Rows per update; more are smoother and slower.")
    train_every: int = Field(
        2,
        ge=1,
        le=10**6,
        description="New rows per update; higher replays every row less often.",
        json_schema_extra=needs(min_updates=[0]),
    )
    min_updates: int = Field(
        0,
        ge=0,
        description="If not 0, at least so many updates per finished episode, one per batch in the memory where that "
        "is more, instead of train_every.",
    )
    updates_per: Literal["segment", "iteration"] = Field(
        "segment",
        description="iteration: min_updates for all new episodes together, as MLxE.",
        json_schema_extra=needs(min_updates={"above": 0}),
    )

    @model_validator(mode="after")
    def _fit_together(self) -> MLxESettings:
        if self.correction == "vtrace" and (self.returns != "n_step" or self.n_step < 2):
            raise ValueError('correction = "vtrace" makes its own targets: it needs returns = "n_step", n_step >= 2')
        if self.value_scale == "survival" and self.returns != "n_step":
            raise ValueError('value_scale = "survival" needs returns = "n_step": it has one discount')
        if self.value_scale == "categorical" and self.correction == "vtrace":
            raise ValueError('value_scale = "categorical" needs another correction than "vtrace", which corrects means')
        return self


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


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """-sum pi log pi per row of log-probabilities (..., A)."""
    return -(log_probs.exp() * log_probs).sum(-1)


class MLxE(DerivesTogether, SoftmaxActor):
    """Acts by a softmax over the actor's outputs and learns by `batch` rows at a time from replay."""

    Settings: ClassVar[type[BaseModel]] = MLxESettings
    settings: MLxESettings
    memory: ClassVar[Literal["replay", "rollouts"]] = "replay"
    kept, counted = ("_learned", "_average", "_target"), ("_followed", "_unused")
    extra_columns: tuple[Column, ...] = ()
    derived_columns: tuple[Column, ...] = ()
    _moments: normaliser.Moments | None
    _target: TorchNetwork
    _followed: int

    def __init__(
        self, settings: MLxESettings, spaces: Spaces, *, seed: int, learns: bool, threads: int = 1, device: str = "cpu"
    ) -> None:
        self.settings, s, self._critic = settings, settings, Critic(settings)
        super().__init__(s, spaces, values=self._critic.outputs, explore=s)
        if s.normalise and spaces.parts and spaces.observation_dtype == "|u1":
            raise ValueError(
                "algorithm.normalise: a replay memory keeps no moments of observations that have parts of bytes; set "
                "it to false, and scale inputs with input_scale"
            )
        if s.returns == "state" and not any(spaces.limits or ()):
            raise ValueError('algorithm.returns: "state" needs a task that declares the limits of its failure')
        self.window, self._successor = (s.n_step, "next_obs") if s.correction == "vtrace" else (1, "cut_obs")
        if self.window == 1 or s.priorities:
            cut = Column("cut_obs", spaces.observation_dtype, spaces.observation_shape)
            self.derived_columns = (Column("partial", "<f4"), Column("coefficient", "<f4"), cut)
        self.batch_rows, self.priorities, self._unused = s.batch, s.how_to_draw, 0
        self.off_policy = "ignores" if s.correction == "none" else "corrects"
        self.load(initial := self.initial([seed, 0]))
        if learns:
            self.begin_to_learn(seed, threads, device)
            self.set_weights(initial)

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Each row's target as partial + coefficient * V(cut_obs), so that it can be replayed alone."""
        if not self.derived_columns:
            return {}
        reward, ends = self._scaled(segments["reward"]), ends_of(segments, lengths)
        seen = flat_observations(segments["obs"], self.spaces)
        split = partial_return(self.settings, reward, lengths, ends, seen, self.spaces.limits)
        return stored(split, segments["next_obs"])

    def _scaled(self, reward: Array) -> Array:
        s = self.settings
        if s.value_scale == "survival":  # the sum of (1 - discount) discount^i over T steps is 1 - discount^T
            return np.full(reward.shape, 1 - s.discount, np.float32)
        return reward * s.return_scale

    def appraise(self, rows: Rows) -> Rows:
        """`return`: each row's target by the loaded weights (N,), without noise; `td_error`: that minus V(obs) (N,)."""
        following, value = (self._critic.appraised(self._acting("value", rows[n])) for n in ("cut_obs", "obs"))
        target = rows["partial"] + rows["coefficient"] * following
        return {"return": target, "td_error": target - value}

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:
        """One per `train_every` new rows, remainders kept; or `min_updates` per new segment or for all of them.

        With `min_updates` there are more if the memory has more batches than that.
        """
        s = self.settings
        if not s.min_updates:
            due, self._unused = divmod(self._unused + new_rows, s.train_every)
            return due
        if not new_segments or not rows:
            return 0
        least = s.min_updates * (new_segments if s.updates_per == "segment" else 1)
        return max(least, rows // min(s.batch, rows) + 1)

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Floats | None]:
        """One step down the gradient of policy loss + value loss - entropy, averaged over the batch."""
        measured = self._differentiate(batch, clock)
        self._apply(clock)
        return measured, None

    def _differentiate(self, batch: Rows, clock: Clock) -> Metrics:
        self._follow(clock)
        rows = self._tensors(batch)
        loss, found = self._loss(rows | self._bootstrapped(rows))
        self._learned.gradient.zero_()
        loss.backward()
        norm = gradients.shorten(self._learned.gradient, self.settings.max_gradient_norm)
        return metrics.as_floats(found | {"gradient_norm": norm})

    def _bootstrapped(self, rows: Tensors) -> Tensors:
        """The target's raw values (rows,) of what follows, and of the rows themselves if they are judged by it."""
        self._target.resample(self._rng)  # its own noise, also where it is the learned network
        own = self.settings.correction == "vtrace" and self._target is not self._learned
        seen = {"following": rows["next_obs"]} | ({"judged": rows["obs"]} if own else {})
        with self._torch.no_grad():
            found = {name: self._target(obs, "value")[0].squeeze(-1) for name, obs in seen.items()}
        self._learned.resample(self._rng)
        return found

    def _loss(self, rows: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The total loss () of a minibatch (M, ...), and what is told of it: numbers () without gradient."""
        s, outputs = self.settings, self._learned(rows["obs"], "policy", "value")
        log_probs, value = outputs[0].log_softmax(-1), outputs[1].squeeze(-1)
        log_prob = log_probs.gather(-1, rows["action"][:, None])[:, 0]
        ratio = correction.ratio(log_prob, rows["log_prob"])
        target, advantage = self._targets(rows, ratio, self._critic.value(value.detach()))
        critic, randomness = value_loss(value, target, s.value_scale), entropy(log_probs)
        losses = policy_loss(log_prob, advantage) + s.value_coefficient * critic - s.entropy * randomness
        weight = rows["weight"] / rows["weight"].sum()
        loss, value_mean, entropy_mean = ((some * weight).sum() for some in (losses, critic, randomness))
        share = correction.effective_share(correction.clipped(ratio, s.ratio_clip))
        found = {"loss": loss, "value_loss": value_mean, "entropy": entropy_mean, "effective_share": share}
        expected, judged = self._critic.expected(target), self._critic.value(value.detach())
        found["explained_variance"] = metrics.explained_variance(expected - judged, expected, weight)
        return loss, {name: one.detach() for name, one in found.items()}

    def _targets(self, rows: Tensors, ratio: torch.Tensor, value: torch.Tensor) -> tuple[Any, Any]:
        """The critic's target and the actor's advantage, already weighted; all (rows,), no gradient."""
        s, following = self.settings, rows["following"]
        if s.correction != "vtrace":
            target, expected = self._critic.target(rows["partial"], rows["coefficient"], following)
            weight = correction.clipped(ratio, s.ratio_clip) if s.correction == "clipped" else 1.0
            return target, weight * (expected - value)
        value = self._critic.value(rows["judged"]) if "judged" in rows else value
        arrays = (ratio, rows["reward"], value, self._critic.value(following), rows["discount"], rows["carry"])
        windows = (array.reshape(self.window, -1) for array in arrays)
        target, advantage = vtrace.vtrace(*windows, rho_clip=s.ratio_clip)
        return target.reshape(-1), advantage.reshape(-1)

    def _follow(self, clock: Clock) -> None:
        """A target network of its own becomes the learned one when that is due."""
        s = self.settings
        due = clock.updates % s.target_every == 0 if s.target == "every_k" else clock.version != self._followed
        if self._target is not self._learned and due:
            self._target.flat.copy_(self._learned.flat)
            self._followed = clock.version

    def _tensors(self, batch: Rows) -> Tensors:
        """All columns of a batch, `columns` in place of those of the same names; time (if any) is merged into rows."""
        shape = batch["action"].shape
        known = {name: column for name, column in batch.items() if column.shape[: len(shape)] == shape}
        rows = known | self.columns(batch)
        return self._learned.tensors({n: c.reshape(-1, *c.shape[len(shape) :]) for n, c in rows.items()})

    def columns(self, batch: Rows) -> Rows:
        """What the losses need of a batch (M, ...) or (T, M, ...): half of the samples mirrored, weights, discounts."""
        s, action = self.settings, batch["action"]
        obs, next_obs = (flat_observations(batch[name], self.spaces) for name in ("obs", self._successor))
        if s.mirror and self.spaces.symmetry:
            flipped: Array = self._rng.random(action.shape[-1:]) < 0.5  # a window is mirrored as a whole
            obs, next_obs, action = symmetry.mirror(obs, next_obs, action, flipped, self.spaces.symmetry)
        obs, next_obs = (shown(some, self._moments) for some in (obs, next_obs))
        rows = {"obs": obs, "next_obs": next_obs, "action": action, "log_prob": batch["log_prob"]}
        rows["weight"] = batch.get("weight", np.ones(action.shape[-1]))
        if self.window == 1:
            return rows | {name: batch[name] for name in ("partial", "coefficient")}
        valid, ended, stopped = (batch[name].astype(bool) for name in ("valid", "terminated", "truncated"))
        rows |= {"weight": rows["weight"] * valid, "reward": self._scaled(batch["reward"])}
        ended |= stopped & s.faithful_truncation
        carry = vtrace.carry_mask(valid, ended, stopped).astype(np.float32)
        return rows | {"discount": s.discount * ~ended, "carry": carry}

    def _apply(self, clock: Clock) -> None:
        self._optimiser.step(self.settings.rate(clock.episodes))
        self._average.lerp_(self._learned.flat, self.settings.average or 1.0)

    def weights(self) -> Floats:
        """The running average, or what the optimiser works on; then what observations are normalised by."""
        moments = normaliser.pack(self._moments) if self._moments else ()
        return np.concatenate([self._average.numpy(force=True), moments], dtype=np.float32)

    def set_weights(self, flat: Floats) -> None:
        """Learn on from these weights; the optimiser's memory starts empty."""
        weights, self._moments = self._split(flat)
        self._learned = self._target = self._learnable(weights, self._device)
        if self.settings.target != "every_update":
            self._target = self._learnable(weights, self._device)
        self._followed = -1  # no version is: the first update follows
        self._average = self._learned.flat.clone()
        self._optimiser = FlatOptimiser(self.settings.optimiser, self._learned.flat, self._learned.gradient, eps=1e-7)
