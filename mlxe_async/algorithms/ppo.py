"""PPO: a rollout is learned from in several epochs, by a loss that gains nothing from moving far from its behaviour.

Papers: Schulman et al. 2017 (clipped surrogate, eq. 7), Schulman et al. 2016 (generalised advantages, eq. 16).
Where we differ: the ratio is taken to the stored behaviour, so that rollouts of a slightly older version are sound;
truncated and cut episodes go on with the value of their true last observation; the running normalisation of the
observations travels with the weights under one version.

What do I change to make ...
  another loss                `policy_loss` or `value_loss`: pure functions, added up in `loss`.
  a clipped value loss        in `loss`; the value before the update is `rows["target"] - rows["advantage"]`.
  an adaptive KL penalty      add `coefficient * correction.approximate_kl(log_prob, rows["log_prob"])` in `loss`.
  other advantages (V-trace)  the one line with `generalised_advantage` in `with_advantages`.
  A2C                         no code: epochs = 1, minibatch as large as a rollout, discount and gae_lambda to taste.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from mlxe_async.algorithms import fields
from mlxe_async.algorithms.acting import SoftmaxActor
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.fields import key
from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors
from mlxe_async.maths import annealing, correction, metrics, returns, rollouts
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class PPOSettings(fields.ActorCriticFields):
    """The fields of `[algorithm]` beside `name = "ppo"`."""

    normalise: bool = fields.normalise(True)
    discount: float = fields.discount(0.99)
    gae_lambda: float = fields.gae_lambda(0.95)
    clip: float = key(0.2, "Higher lets one update change a probability by more.", gt=0, le=10)
    epochs: int = key(10, "Passes over each rollout; more learn more from it, and drift.", ge=1, le=1000)
    minibatch: int = key(64, "Rows per step of the optimiser; more are smoother and fewer steps.", ge=1)
    minibatches: Literal["rows", "sequences"] = key(
        "rows", "rows: shuffled, advantages made once; sequences: whole ones, advantages made anew for each step."
    )
    max_kl: float = key(0.0, "An update ends early beyond this KL; higher moves more, 0: never.", ge=0)
    value_coefficient: float = fields.value_coefficient(0.5)
    entropy: float = fields.entropy(0.01)
    learning_rate: float = fields.learning_rate(1e-3)
    learning_rate_last: float = fields.learning_rate_last(1e-4)
    anneal_steps: int = fields.anneal_steps(500_000)
    max_gradient_norm: float = fields.max_gradient_norm(0.5)


def policy_loss(
    log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor, advantage: torch.Tensor, clip: float
) -> torch.Tensor:
    """Clipped surrogate, eq. 7, negated to be minimised. All (M,) -> ()."""
    ratio = (log_prob - behaviour_log_prob).exp()
    return -(ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Half the mean squared error. Both (M,) -> (); the target has no gradient."""
    return 0.5 * (target.detach() - value).square().mean()


class PPO(SoftmaxActor):
    """Acts by a softmax over the actor's outputs and learns from whole rollouts, each in one call of `update`."""

    Settings = PPOSettings
    settings: PPOSettings
    memory, off_policy, compiles = "rollouts", "corrects", True
    gains: ClassVar = {"policy": 0.01}  # the first policy is nearly uniform
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 8, "sync": "rollout", "rollout_steps": 64, "max_owed_updates": 2}
    }

    def build(self) -> None:
        """An actor and a critic, side by side."""
        self.shape, self.batch_rows = self.actor_and_critic(), self.settings.minibatch

    def build_learner(self) -> None:
        """Adam with the epsilon of the paper's code."""
        self.optimiser = FlatOptimiser("adam", self.network.flat, self.network.gradient, eps=1e-5)

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, None]:
        """A step of the optimiser for each minibatch of rollouts (T, B, ...)."""
        s, measured = self.settings, []
        rate = annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)
        for rows in self.minibatches(batch):
            loss, found = self.loss(rows)
            measured.append(found)
            if s.max_kl and found["approximate_kl"] > s.max_kl:
                break
            self.optimiser.zero_grad()
            loss.backward()
            clip_grad_norm_(self.network.gradient, s.max_gradient_norm)
            self.optimiser.step(rate)
        self.count(batch)
        return metrics.means(measured) | {"minibatches": len(measured), "learning_rate": rate}, None

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The total loss () of a minibatch (M, ...), and what is told of it: numbers () without gradient."""
        s, (logits, value) = self.settings, self.network(rows["obs"], "policy", "value")  # (M, A), (M, 1)
        policy, behaviour = Categorical(logits), rows["log_prob"]
        log_prob, entropy = policy.log_prob(rows["action"]), policy.entropy().mean()
        actor = policy_loss(log_prob, behaviour, returns.normalised(rows["advantage"]), s.clip)
        critic = value_loss(value[:, 0], rows["target"])
        total = actor + s.value_coefficient * critic - s.entropy * entropy
        found = {"policy_loss": actor, "value_loss": critic, "entropy": entropy}
        found["approximate_kl"] = correction.approximate_kl(log_prob, behaviour)
        found["clipped_share"] = ((log_prob - behaviour).exp() - 1).abs().gt(s.clip).float().mean()
        found["explained_variance"] = metrics.explained_variance(rows["advantage"], rows["target"])
        return total, {name: one.detach() for name, one in found.items()}

    def minibatches(self, batch: Rows) -> Iterator[Tensors]:
        """The minibatches of all epochs, one after the other."""
        s = self.settings
        if s.minibatches == "sequences":
            for _ in range(s.epochs):
                for piece in rollouts.columns(batch, s.minibatch):
                    yield self.with_advantages(piece)  # only now: by the values that the last step led to
        else:
            yield from rollouts.shuffled(self.with_advantages(batch), s.minibatch, s.epochs, self.rng)

    def with_advantages(self, batch: Rows) -> Tensors:
        """The valid rows (N, ...) of rollouts (T, B, ...), with `advantage` and the critic's `target`."""
        s, valid = self.settings, batch["valid"].astype(bool)
        ends, ended, missing = rollouts.unknown(batch)
        obs = self.seen(batch["obs"])
        value, after = self.values(obs), self.values(self.seen(batch["next_obs"][missing]))
        arrays = (batch["reward"], value, rollouts.following(value, after, missing), ended, ends)
        advantage = returns.generalised_advantage(*arrays, s.discount, s.gae_lambda)
        rows = batch | {"obs": obs, "advantage": advantage, "target": advantage + value}
        return self.network.tensors({name: column[valid] for name, column in rows.items()})

    def values(self, obs: Array) -> Array:
        """V (...) of what the network is shown (..., O), in double precision for the sums to come."""
        import torch

        flat = self.network.tensors({"obs": obs.reshape(-1, self.shape.inputs)})["obs"]
        with torch.no_grad():
            value = self.network(flat, "value")[0]
        return np.asarray(value.reshape(obs.shape[:-1]).numpy(force=True), np.float64)
