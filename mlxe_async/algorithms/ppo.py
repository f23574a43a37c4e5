"""PPO: a rollout is learned from in several epochs, by a loss that gains nothing from moving far from its behaviour.

Papers: Schulman et al. 2017 (clipped surrogate, eq. 7), Schulman et al. 2016 (generalised advantages, eq. 16).
Where we differ: the ratio is taken to the stored behaviour, so that rollouts of a slightly older version are sound;
truncated and cut episodes go on with the value of their true last observation; the running normalisation of the
observations travels with the weights under one version.

What do I change to make ...
  another loss                `policy_loss`, `value_loss` or `entropy`: pure functions, added up in `_loss`.
  a clipped value loss        in `_loss`; the value before the update is `rows["target"] - rows["advantage"]`.
  an adaptive KL penalty      add `coefficient * correction.approximate_kl(log_prob, rows["log_prob"])` in `_loss`.
  other advantages (V-trace)  the one line with `generalised_advantage` in `_with_advantages`.
  A2C                         no code: epochs = 1, minibatch as large as a rollout, discount and gae_lambda to taste.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from mlxe_async.algorithms.acting import SoftmaxActor, shown
from mlxe_async.algorithms.fields import ActorCriticFields
from mlxe_async.algorithms.interface import STAYS, Clock, Metrics, Priorities, Rows, flat_observations, needs
from mlxe_async.maths import annealing, correction, gradients, metrics, normaliser, returns, rollouts
from mlxe_async.networks import Floats
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array, Column, Spaces

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]


class PPOSettings(ActorCriticFields):
    """The fields of `[algorithm]` beside `name = "ppo"`."""

    normalise: bool = Field(
        True,
        description="Show the network (obs - mean) / deviation of what was seen so far; false with a body.",
        json_schema_extra=STAYS,
    )
    discount: float = Field(0.99, ge=0, le=1, description="Higher looks further ahead, with noisier advantages.")
    gae_lambda: float = Field(
        0.95,
        ge=0,
        le=1,
        description="Higher trusts rewards more and the critic less.",
        json_schema_extra=needs(discount={"above": 0}),
    )
    clip: float = Field(0.2, gt=0, le=10, description="Higher lets one update change a probability by more.")
    epochs: int = Field(10, ge=1, le=1000, description="Passes over each rollout; more learn more from it, and drift.")
    minibatch: int = Field(64, ge=1, description="Rows per step of the optimiser; more are smoother and fewer steps.")
    minibatches: Literal["rows", "sequences"] = Field(
        "rows",
        description="rows: shuffled rows, advantages made once for all epochs; sequences: whole sequences of some "
        "environments, advantages made anew for each step, which is faster with epochs = 1.",
    )
    max_kl: float = Field(0.0, ge=0, description="An update ends early beyond this KL; higher moves more, 0: never.")
    value_coefficient: float = Field(0.5, ge=0, description="Higher favours the critic in layers that are shared.")
    entropy: float = Field(0.01, ge=0, description="Higher keeps the policy random for longer.")
    learning_rate: float = Field(1e-3, gt=0, description="Higher learns faster, until it forgets or diverges.")
    learning_rate_last: float = Field(1e-4, ge=0, description="Rate after anneal_steps; higher keeps learning faster.")
    anneal_steps: int = Field(
        500_000,
        ge=1,
        description="Environment steps until learning_rate_last; more fall slower.",
        json_schema_extra=needs(learning_rate={"not": "learning_rate_last"}),
    )
    max_gradient_norm: float = Field(0.5, ge=0, description="Longer gradients are cut to this; 0 never cuts.")


def policy_loss(
    log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor, advantage: torch.Tensor, clip: float
) -> torch.Tensor:
    """Clipped surrogate, eq. 7, negated to be minimised. All (M,) -> ()."""
    ratio = (log_prob - behaviour_log_prob).exp()
    return -(ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Half the mean squared error. Both (M,) -> (); the target has no gradient."""
    return 0.5 * (target.detach() - value).square().mean()


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Mean of -sum pi log pi over rows of log-probabilities. (M, A) -> ()."""
    return -(log_probs.exp() * log_probs).sum(-1).mean()


def normalised_advantage(advantage: torch.Tensor) -> torch.Tensor:
    """Mean 0 and deviation 1 within a minibatch, so that the step does not depend on the rewards' size. (M,)."""
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)


def clipped_share(log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor, clip: float) -> torch.Tensor:
    """Share of the rows whose ratio is further than `clip` from 1. Both (M,) -> ()."""
    return ((log_prob - behaviour_log_prob).exp() - 1).abs().gt(clip).float().mean()


class PPO(SoftmaxActor):
    """Acts by a softmax over the actor's outputs and learns from whole rollouts, each in one call of `update`."""

    Settings: ClassVar[type[BaseModel]] = PPOSettings
    settings: PPOSettings
    memory: ClassVar[Literal["replay", "rollouts"]] = "rollouts"
    kept = ("_learned",)
    off_policy, compiles = "corrects", True
    extra_columns: tuple[Column, ...] = ()
    derived_columns: tuple[Column, ...] = ()
    window, priorities = 1, Priorities()
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"envs_per_executor": 8, "sync": "rollout", "rollout_steps": 64, "max_owed_updates": 2}
    }
    _moments: normaliser.Moments | None

    def __init__(
        self, settings: PPOSettings, spaces: Spaces, *, seed: int, learns: bool, threads: int = 1, device: str = "cpu"
    ) -> None:
        self.settings, self.batch_rows = settings, settings.minibatch
        super().__init__(settings, spaces)
        # A small last layer: the first policy is nearly uniform.
        self.load(initial := self.initial([seed, 0], {"policy": 0.01}))
        if learns:
            self.begin_to_learn(seed, threads, device)
            self.set_weights(initial)

    # -- memorizing: rollouts are taken as they are --

    def derive(self, segment: Rows) -> Rows:  # noqa: ARG002 - advantages need the newest values: the learner's work
        """Nothing is derived: advantages are computed in `update`."""
        return {}

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:  # noqa: ARG002 - all are new
        """One update as soon as there are rows."""
        return int(rows > 0)

    # -- learning: torch --

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Floats | None]:
        """A step of the optimiser for each minibatch of rollouts (T, B, ...)."""
        s, measured = self.settings, []
        rate = annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)
        for rows in self._minibatches(batch):
            loss, found = self._loss(rows)
            measured.append(found)
            if s.max_kl and found["approximate_kl"] > s.max_kl:
                break
            self._learned.gradient.zero_()
            loss.backward()
            gradients.shorten(self._learned.gradient, s.max_gradient_norm)
            self._optimiser.step(rate)
        self._count(batch)
        return metrics.means(measured) | {"minibatches": len(measured), "learning_rate": rate}, None

    def _loss(self, rows: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The total loss () of a minibatch (M, ...), and what is told of it: numbers () without gradient."""
        s, behaviour = self.settings, rows["log_prob"]
        logits, value = self._learned(rows["obs"], "policy", "value")  # (M, A), (M, 1)
        log_probs = logits.log_softmax(-1)
        log_prob = log_probs.gather(-1, rows["action"][:, None])[:, 0]
        actor = policy_loss(log_prob, behaviour, normalised_advantage(rows["advantage"]), s.clip)
        critic, randomness = value_loss(value[:, 0], rows["target"]), entropy(log_probs)
        total = actor + s.value_coefficient * critic - s.entropy * randomness
        found = {"policy_loss": actor, "value_loss": critic, "entropy": randomness}
        found["approximate_kl"] = correction.approximate_kl(log_prob, behaviour)
        found["clipped_share"] = clipped_share(log_prob, behaviour, s.clip)
        found["explained_variance"] = metrics.explained_variance(rows["advantage"], rows["target"])
        return total, {name: one.detach() for name, one in found.items()}

    def _minibatches(self, batch: Rows) -> Iterator[Tensors]:
        """The minibatches of all epochs, one after the other."""
        if self.settings.minibatches == "sequences":
            for _ in range(self.settings.epochs):
                for piece in rollouts.columns(batch, self.settings.minibatch):
                    yield self._with_advantages(piece)  # only now: by the values that the last step led to
        else:
            yield from self._shuffled(self._with_advantages(batch))

    def _shuffled(self, rows: Tensors) -> Iterator[Tensors]:
        """All rows in a new order for each epoch, gathered once; minibatches are views on consecutive pieces."""
        count = len(rows["action"])
        sizes = [len(part) for part in np.array_split(range(count), max(1, round(count / self.settings.minibatch)))]
        for _ in range(self.settings.epochs):
            order = self._learned.tensors({"order": self._rng.permutation(count)})["order"]
            for piece in zip(*[self._torch.split(column[order], sizes) for column in rows.values()], strict=True):
                yield dict(zip(rows, piece, strict=True))

    def _with_advantages(self, batch: Rows) -> Tensors:
        """The valid rows (N, ...) of rollouts (T, B, ...), with `advantage` and the critic's `target`."""
        s, valid = self.settings, batch["valid"].astype(bool)
        ends, ended, missing = rollouts.unknown(batch)
        obs = self._seen(batch["obs"])
        value, after = self._values(obs), self._values(self._seen(batch["next_obs"][missing]))
        arrays = (batch["reward"], value, rollouts.following(value, after, missing), ended, ends)
        advantage = returns.generalised_advantage(*arrays, s.discount, s.gae_lambda)
        rows = batch | {"obs": obs, "advantage": advantage, "target": advantage + value}
        return self._learned.tensors({name: column[valid] for name, column in rows.items()})

    def _values(self, obs: Array) -> Array:
        """V (...) of normalised observations (..., O), in double precision for the sums to come."""
        with self._torch.no_grad():
            flat = self._learned.tensors({"obs": obs.reshape(-1, self.network.inputs)})
            (value,) = self._learned(flat["obs"], "value")
        return np.asarray(value.reshape(obs.shape[:-1]).numpy(force=True), np.float64)

    def _seen(self, obs: Array) -> Array:
        return shown(flat_observations(obs, self.spaces), self._moments)

    def _count(self, batch: Rows) -> None:
        """Only after an update: until then learner and behaviour see observations in the same way."""
        if self._moments:
            seen = flat_observations(batch["obs"], self.spaces)[batch["valid"].astype(bool)]
            self._moments = normaliser.merge(self._moments, seen)

    def weights(self) -> Floats:
        """The network's weights, then the normalisation they were learned with."""
        moments = normaliser.pack(self._moments) if self._moments else ()
        return np.concatenate([self._learned.flat.numpy(force=True), moments], dtype=np.float32)

    def set_weights(self, flat: Floats) -> None:
        """Learn on from these weights and this normalisation; the optimiser's memory starts empty."""
        weights, self._moments = self._split(flat)
        self._learned = self._learnable(weights, self._device)
        self._optimiser = FlatOptimiser("adam", self._learned.flat, self._learned.gradient, eps=1e-5)
