"""C51: each action's return as a distribution over fixed atoms, learned from replay.

Papers: Bellemare et al. 2017; those of the switches `double`, `dueling`, `prioritised`, `noisy`, all off here, are
named in `parts/value_fields.py`. `parts/value_based.py` has what C51 shares with DQN; in `rainbow.py` all are on.
Rows' priorities are their losses. Where we differ: layers are normalised but behind convolutions, truncated and cut
episodes go on with the distribution at their true last observation, and sizes, rates and clocks suit small tasks.

What do I change to make ...
  other atoms                 no code: v_min, v_max, atoms. They must cover all discounted returns; see `at_ends`.
  another loss or target      `cross_entropy`; `maths.distributional.project`: pure functions.
  a risk-averse agent         `means`: what actions are compared by, here the means of their distributions.
  other priorities            `judged`: numbers above 0. No code: prioritised = true, priority_exponent.
  Rainbow                     no code: name = "rainbow", or the switches one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import model_validator

from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import fields, value_fields
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.algorithms.parts.policies import number_of_actions
from mlxe_async.algorithms.parts.replay import tensors_of
from mlxe_async.algorithms.parts.value_based import ValueBased
from mlxe_async.algorithms.parts.value_fields import ValueBasedFields
from mlxe_async.algorithms.parts.value_networks import streams
from mlxe_async.maths import categorical, distributional, metrics
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.networks import Floats
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class C51Settings(ValueBasedFields):
    """The fields of `[algorithm]` beside `name = "c51"`."""

    n_step: int = fields.n_step(1)
    double: bool = value_fields.double(False)
    v_min: float = key(-10.0, "The lowest atom; lower covers worse returns, coarser.", stays=True)
    v_max: float = key(10.0, "The highest atom; higher covers better returns, coarser.", stays=True)
    atoms: int = key(51, "Values told apart; more are finer and slower.", stays=True, ge=2, le=10_001)

    @model_validator(mode="after")
    def _ends_in_order(self) -> C51Settings:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min: got {self.v_min}, expected less than v_max = {self.v_max}")
        return self


def cross_entropy(target: torch.Tensor, log_probability: torch.Tensor) -> torch.Tensor:
    """-sum of target * log probability over the atoms: (M, K) each -> (M,). Moves the second only."""
    return -(target.detach() * log_probability).sum(-1)


def means(logits: Any, support: Floats) -> Any:
    """Mean returns (..., A) of logits (..., A, K) of atoms (K,); arrays or tensors."""
    if isinstance(logits, np.ndarray):
        return np.exp(categorical.log_softmax(logits)) @ support
    return distributional.mean(logits.softmax(-1), logits.new_tensor(support))


def loss_of(
    logits: torch.Tensor, following: torch.Tensor, choosing: torch.Tensor, rows: Tensors, support: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
    """The weighted cross-entropy () of a minibatch; each row's (M,), and what is told of them, without gradient.

    Args:
        logits: of what is learned (M, A, K).
        following: of the target network at s'.
        choosing: of what chooses the action at s'.
        rows: `action`, `partial`, `coefficient` and `weight` (M,).
        support: atoms (K,).
    """
    best = distributional.mean(choosing.softmax(-1), support).argmax(-1)
    probability = _of(following, best).softmax(-1)
    target = distributional.project(probability, rows["partial"], rows["coefficient"], support)
    log_probability = _of(logits, rows["action"]).log_softmax(-1)
    losses = cross_entropy(target, log_probability)
    loss = (losses * rows["weight"]).mean()
    expected, value = (distributional.mean(one, support) for one in (target, log_probability.detach().exp()))
    found = {"loss": loss.detach(), "value": value.mean(), "td_error": (expected - value).abs().mean()}
    found["at_ends"] = (target[:, 0] + target[:, -1]).mean()  # much of it: v_min and v_max are too close
    return loss, losses.detach(), found


def _of(logits: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Logits (M, K) of one action each, of those (M, A, K) of all."""
    index = action[:, None, None].expand(-1, 1, logits.shape[-1])
    return logits.gather(1, index)[:, 0]


class C51(ValueBased):
    """Acts by the means of its distributions, and learns them by `batch` rows at a time."""

    Settings = C51Settings
    settings: C51Settings

    @classmethod
    def outputs_of(cls, settings: C51Settings) -> int:
        """Numbers that say what an action is worth."""
        return settings.atoms

    def build(self) -> None:
        """Logits of all atoms of all actions."""
        s, actions = self.settings, number_of_actions(type(self), self.spaces)
        self.support: Floats = np.linspace(s.v_min, s.v_max, s.atoms, dtype=np.float32)
        sigma = s.noise_sigma if s.noisy else None
        self.network = streams(s, self.spaces, actions, dueling=s.dueling, sigma=sigma, atoms=s.atoms)
        super().build()

    def build_learner(self) -> None:
        """Make the learned network, its target, and Adam with the epsilon of the paper."""
        super().build_learner()
        self.optimiser = Adam(self.learned.parameters(), eps=1.5e-4)

    def scores(self, outputs: Any) -> Any:
        """Mean returns (..., A) of logits (..., A, K); arrays or tensors."""
        return means(outputs, self.support)

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Array | None]:
        """One step towards the targets; every `target_every` updates the target network becomes the learned one."""
        s, rows, rate = self.settings, tensors_of(self, batch), self.rate(clock)
        self.prepare(clock)
        loss, losses, found = self.loss(rows)
        self.optimiser.zero_grad()
        loss.backward()
        found["gradient_norm"] = clip_grad_norm_(self.optimiser.gradient, s.max_gradient_norm)
        self.optimiser.step(rate)
        self.publish(clock)
        return metrics.as_floats(found) | {"epsilon": self.epsilon.item(), "learning_rate": rate}, self.judged(losses)

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The loss () of a minibatch; each row's own (M,) and what is told of them, both without gradient."""
        import torch

        with torch.no_grad():
            following = self.target(rows["cut_obs"])
            choosing = self.learned(rows["cut_obs"]) if self.settings.double else following
        return loss_of(self.learned(rows["obs"]), following, choosing, rows, following.new_tensor(self.support))
