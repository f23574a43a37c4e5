"""DQN: values of actions, learned from replay against a slowly changing copy of themselves.

Papers: Mnih et al. 2015 (replay, target network), van Hasselt et al. 2016 (Double, `double = true`).
Where we differ: layers are normalised and targets count a few rewards before they ask the network, without which
CartPole takes several times the steps; truncated and cut episodes go on with the value of their true last observation;
exploration falls with environment steps, and its epsilon is one more number of the published weights.
On request a running average is published, and values are logits of 1 - E discount^T, T steps to failure.

What do I change to make ...
  DQN as published            no code: double = false, n_step = 1, layer_norm = false.
  another loss or target      `q_loss`, `td_target`, pure functions; what they need of later rows: `derive_many`.
  prioritised replay          `priorities = Priorities("td")`; `update` returns `error.abs().numpy() + 0.01`, not None.
  softmax exploration         no code: behaviour = "softmax", temperature. Others: a case in `exploration.mixture`.
  a slow moving target        no code: target_every = 1, target_rate = 0.005.
  a dueling network           heads "value" and "advantage" in `build`, what they add up to in `scores`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, ClassVar, Literal

from mlxe_async.algorithms import fields
from mlxe_async.algorithms.acting import ActsByValues, number_of_actions
from mlxe_async.algorithms.bootstrapping import Replays, ends_of, stored, target_columns
from mlxe_async.algorithms.exploration import ValueExplorationFields
from mlxe_async.algorithms.fields import key
from mlxe_async.algorithms.interface import STAYS, Clock, Metrics, Priorities, Rows, Tensors, needs
from mlxe_async.maths import annealing, metrics, returns
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch

Loss = Literal["huber", "square"]
Scale = Literal["return", "survival"]
BOOTSTRAPS = needs(discount={"above": 0})
OF_RETURNS = needs(value_scale=["return"])


class DQNSettings(fields.ReplayedFields, ValueExplorationFields, fields.ValueNetworkFields):
    """The fields of `[algorithm]` beside `name = "dqn"`."""

    discount: float = fields.discount(0.99)
    n_step: int = fields.n_step(3, BOOTSTRAPS)
    double: bool = key(True, "Values are less exaggerated: one network chooses, the other one judges.", BOOTSTRAPS)
    value_scale: Scale = key("return", "survival: sigmoid(Q) = 1 - E discount^T, T steps to failure.", STAYS)
    return_scale: float = fields.return_scale(1.0, OF_RETURNS)
    loss: Loss = key("huber", "huber grows only linearly with large errors, square trusts them fully.", OF_RETURNS)
    batch: int = fields.batch(64)
    start_rows: int = key(1000, "Rows to gather before learning begins; more are more diverse.", ge=1)
    train_every: int = fields.train_every()
    min_updates: int = key(0, "If not 0, updates per finished episode, instead of train_every.", ge=0)
    target_every: int = key(128, "Updates between moves of the target network; higher is slower.", BOOTSTRAPS, ge=1)
    target_rate: float = key(1.0, "Share of the way it moves; higher follows faster.", BOOTSTRAPS, gt=0, le=1)
    learning_rate: float = fields.learning_rate(1e-3)
    learning_rate_last: float = fields.learning_rate_last(1e-4)
    anneal_steps: int = fields.anneal_steps(100_000)
    max_gradient_norm: float = fields.max_gradient_norm(10.0)


def q_loss(q: torch.Tensor, target: torch.Tensor, kind: Loss | Literal["survival"]) -> torch.Tensor:
    """Half the squared error, Huber's loss (linear beyond 1), or cross-entropy of a logit. All (M,); moves q only."""
    if kind == "survival":  # -target log sigmoid(q) - (1 - target) log(1 - sigmoid(q)), safe for large |q|
        return q.relu() - q * target.detach() + (-q.abs()).exp().log1p()
    error = target.detach() - q
    if kind == "square":
        return 0.5 * error.square()
    return 0.5 * error.square().where(error.abs() <= 1, 2 * error.abs() - 1)


def td_target(
    partial: torch.Tensor, coefficient: torch.Tensor, next_q: torch.Tensor, choosing_q: torch.Tensor
) -> torch.Tensor:
    """`partial` rewards up to s' + `coefficient` * Q'(s', a'), where a' maximises `choosing_q` (M, A). -> (M,).

    The coefficient (M,) is the discount up to s', 0 where the world ended (but not where it was merely left). What
    chooses is `next_q` (M, A) of the target network itself for DQN, the learned network's values for Double DQN.
    """
    best = choosing_q.argmax(-1, keepdim=True)
    return partial + coefficient * next_q.gather(-1, best)[:, 0]


class DQN(Replays, ActsByValues):
    """Acts by its values, mostly greedily, and learns them by `batch` rows at a time."""

    Settings = DQNSettings
    settings: DQNSettings
    memory, off_policy, priorities = "replay", "learns", Priorities()
    counted = ("rows_seen", "unused", "epsilon")
    of_pictures: ClassVar = {"body": "nature", "layers": (512,), "layer_norm": False}
    defaults: ClassVar = {
        "schedule": {"envs_per_executor": 4, "sync": "rollout", "rollout_steps": 32}
        | {"updates_per_publish": 32, "max_owed_updates": 256},
        "memory": {"capacity_rows": 100_000},
    }

    def build(self) -> None:
        """Values of all actions."""
        heads = {"q": (*self.settings.layers, number_of_actions(type(self), self.spaces))}
        self.shape, self.derived_columns = self.shaped((), heads), target_columns(self.spaces)

    def build_learner(self) -> None:
        """The target network, the average that is published, and Adam."""
        self.target, self.average = copy.deepcopy(self.network), copy.deepcopy(self.network)
        self.optimiser = FlatOptimiser("adam", self.network.flat, self.network.gradient, eps=1e-8)

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Each row's target as partial + coefficient * Q'(cut_obs), so that it can be replayed alone."""
        s, (ended, _) = self.settings, ends_of(segments, lengths)
        split = returns.n_step_many(self.scaled(segments["reward"]), lengths, ended, s.discount, s.n_step)
        return stored(split, segments["next_obs"])

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:
        """`min_updates` per new segment, or one per `train_every` new rows, remainders kept; from `start_rows` on."""
        self.rows_seen += new_rows
        if max(self.rows_seen, rows) < self.settings.start_rows:
            return 0
        due = self.one_per(self.settings.train_every, new_rows)
        return self.settings.min_updates * new_segments if self.settings.min_updates else due

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Array | None]:
        """One step towards the targets; every `target_every` updates the target network becomes the learned one."""
        s, rows = self.settings, self.tensors_of(batch)
        if clock.updates % s.target_every == 0:
            self.target.follow(self.network, s.target_rate)
        loss, _error, found = self.loss(rows)
        self.optimiser.zero_grad()
        loss.backward()
        found["gradient_norm"] = clip_grad_norm_(self.network.gradient, s.max_gradient_norm)
        rate = annealing.linear(s.learning_rate, s.learning_rate_last, s.anneal_steps, clock.env_steps)
        self.optimiser.step(rate)
        self.average.follow(self.network, s.average or 1.0)
        self.epsilon = annealing.linear(s.epsilon_first, s.epsilon_last, s.epsilon_steps, clock.env_steps)
        return metrics.as_floats(found) | {"epsilon": self.epsilon, "learning_rate": rate}, None

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The loss () of a minibatch; each row's TD error (M,) and what is told of it, both without gradient."""
        s = self.settings
        next_q = self.scores(self.target, rows["cut_obs"]).detach()
        choosing_q = self.scores(self.network, rows["cut_obs"]).detach() if s.double else next_q
        target = td_target(rows["partial"], rows["coefficient"], self.value(next_q), choosing_q)
        q = self.scores(self.network, rows["obs"]).gather(-1, rows["action"][:, None])[:, 0]
        loss = (q_loss(q, target, "survival" if s.value_scale == "survival" else s.loss) * rows["weight"]).mean()
        value = self.value(q.detach())
        found = {"loss": loss.detach(), "value": value.mean(), "td_error": (target - value).abs().mean()}
        return loss, target - value, found
