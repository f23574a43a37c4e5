"""DQN: values of actions, learned from replay against a slowly changing copy of themselves.

Papers: Mnih et al. 2015 (replay, target network); those of `double`, `dueling`, `prioritised` and `noisy` are named in
`parts/value_fields.py`. What C51 and Rainbow share with DQN is in `parts/value_based.py`.
Where we differ: layers are normalised and targets count a few rewards first, or CartPole takes several times the steps;
cut episodes go on with the value of their true last observation; exploration falls with environment steps.

What do I change to make ...
  DQN as published            no code: double = false, n_step = 1, layer_norm = false.
  another loss or target      `q_loss`, `td_target`, pure functions; what they need of later rows: `derive_many`.
  other priorities            `judged`: numbers above 0. No code: prioritised = true, priority_exponent.
  softmax exploration         no code: behaviour = "softmax", temperature. Others: a case in `exploration.mixture`.
  a second value network      `build_learner` and `prepare` of `parts/value_based.py`, where targets are made and moved,
                              and `loss`.
  a slow moving target        no code: target_every = 1, target_rate = 0.005.
  memory, R2D2                no code: cell = "lstm", value_rescaling = true; see `parts/sequences.py`.
  a dueling network           no code: dueling = true. Other streams: `network` in `build`, any module of observations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import fields, value_fields
from mlxe_async.algorithms.parts.policies import number_of_actions
from mlxe_async.algorithms.parts.replay import survived
from mlxe_async.algorithms.parts.sequences import SequenceFields
from mlxe_async.algorithms.parts.value_based import ValueBased
from mlxe_async.algorithms.parts.value_fields import OF_RETURNS, Loss, Scale, ValueBasedFields
from mlxe_async.algorithms.parts.value_networks import streams
from mlxe_async.maths import metrics, rescaling
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class DQNSettings(ValueBasedFields, SequenceFields):
    """The fields of `[algorithm]` beside `name = "dqn"`."""

    value_scale: Scale = value_fields.scale("return")
    return_scale: float = fields.return_scale(1.0, OF_RETURNS)
    value_rescaling: bool = value_fields.rescaling(False)
    loss: Loss = value_fields.loss("huber", OF_RETURNS)


def q_loss(q: torch.Tensor, target: torch.Tensor, kind: str) -> torch.Tensor:
    """Half the squared error, Huber's loss (linear beyond 1), or cross-entropy of a logit. All (M,); moves q only."""
    if kind == "survival":  # -target log sigmoid(q) - (1 - target) log(1 - sigmoid(q)), safe for large |q|
        return q.relu() - q * target.detach() + (-q.abs()).exp().log1p()
    error = target.detach() - q
    if kind == "square":
        return 0.5 * error.square()
    return 0.5 * error.square().where(error.abs() <= 1, 2 * error.abs() - 1)


def td_target(partial: torch.Tensor, coefficient: torch.Tensor, next_q: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """`partial` + `coefficient` * Q'(s', a') (M,), where a' maximises `by` (M, A); `next_q` is Q'(s', .) (M, A).

    The coefficient (M,) is the discount up to s', 0 only where the world ended. Double DQN chooses by the learned Q.
    """
    best = by.argmax(-1, keepdim=True)
    return partial + coefficient * next_q.gather(-1, best)[:, 0]


class DQN(ValueBased):
    """Acts by its values, mostly greedily, and learns them by `batch` rows at a time."""

    Settings = DQNSettings
    settings: DQNSettings

    def build(self) -> None:
        """Values of all actions."""
        s, actions = self.settings, number_of_actions(type(self), self.spaces)
        self.network = streams(s, self.spaces, actions, dueling=s.dueling, sigma=s.noise_sigma if s.noisy else None)
        super().build()

    def build_learner(self) -> None:
        """Make the learned network, its target, and Adam."""
        super().build_learner()
        self.optimiser = Adam(self.learned.parameters(), eps=1e-8)

    def scaled(self, reward: Array) -> Array:
        """Rewards as values count them."""
        s = self.settings
        return survived(reward, s.discount) if s.value_scale == "survival" else super().scaled(reward)

    def value(self, q: torch.Tensor) -> torch.Tensor:
        """Q as a return, by a network's output; see `value_scale` and `value_rescaling`."""
        if self.settings.value_scale == "survival":
            return q.sigmoid()
        return rescaling.h_inverse(q) if self.settings.value_rescaling else q

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Array | None]:
        """One step towards the targets; every `target_every` updates the target network becomes the learned one."""
        s, rows, rate = self.settings, self.rows(batch), self.rate(clock)
        self.prepare(clock)
        loss, error, found = self.loss(rows)
        self.optimiser.zero_grad()
        loss.backward()
        found["gradient_norm"] = clip_grad_norm_(self.optimiser.gradient, s.max_gradient_norm)
        self.optimiser.step(rate)
        self.publish(clock)
        told = metrics.as_floats(found) | {"epsilon": self.epsilon.item(), "learning_rate": rate}
        return told, self.judged(error, rows)

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The loss () of a minibatch; each row's TD error (M,) and what is told of it, both without gradient."""
        s, survival = self.settings, self.settings.value_scale == "survival"
        every_q, next_q, choosing_q = self.evaluated(rows)
        target = td_target(rows["partial"], rows["coefficient"], self.value(next_q), choosing_q)
        if s.value_rescaling:
            target = rescaling.h(target)
        q = every_q.gather(-1, rows["action"][:, None])[:, 0]
        loss = (q_loss(q, target, "survival" if survival else s.loss) * rows["weight"]).mean()
        error = target - (q.detach().sigmoid() if survival else q.detach())
        found = {"loss": loss.detach(), "value": self.value(q.detach()).mean(), "td_error": error.abs().mean()}
        return loss, error, found
