"""Rainbow: C51 with double, dueling and noisy networks, prioritised replay and several steps.

Paper: Hessel et al. 2018. This file has what Rainbow switches on, with the paper's exponents; the loss is that of
`c51.py`, the switches are those of `parts/value_fields.py`. Each can be switched off alone. Where we differ: as C51
here; rates and clocks suit small tasks, and are the paper's where the task shows pictures. The paper's priorities are
KL divergences, ours the losses: a row whose target is uncertain itself comes more often.

What do I change to make ...
  Rainbow as published        no code: the settings that pictures get, `of_pictures`.
  Rainbow without a part      no code: double, dueling, prioritised or noisy = false, n_step = 1.
  memory                      no code: cell = "lstm"; see `parts/sequences.py`.
  other atoms, other losses   as in `c51.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlxe_async.algorithms.c51 import C51Settings, loss_of, means
from mlxe_async.algorithms.interface import Clock, Metrics, Rows, Tensors
from mlxe_async.algorithms.parts import exploration, fields, value_fields
from mlxe_async.algorithms.parts.policies import number_of_actions
from mlxe_async.algorithms.parts.sequences import SequenceFields
from mlxe_async.algorithms.parts.value_based import ValueBased
from mlxe_async.algorithms.parts.value_networks import streams
from mlxe_async.maths import metrics
from mlxe_async.maths.gradients import clip_grad_norm_
from mlxe_async.networks import Floats
from mlxe_async.optimisers import Adam
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class RainbowSettings(C51Settings, SequenceFields):
    """The fields of `[algorithm]` beside `name = "rainbow"`."""

    n_step: int = fields.n_step(3)
    double: bool = value_fields.double(True)
    dueling: bool = value_fields.dueling(True)
    prioritised: bool = value_fields.prioritised(True)
    priority_exponent: float = value_fields.priority_exponent(0.5)
    noisy: bool = exploration.noisy(True)


class Rainbow(ValueBased):
    """C51 with all switches on."""

    Settings = RainbowSettings
    settings: RainbowSettings
    of_pictures: ClassVar = ValueBased.of_pictures | {
        **dict.fromkeys(("learning_rate", "learning_rate_last"), 6.25e-5),
        "batch": 32,
        "start_rows": 20_000,
        "train_every": 4,
        "target_every": 8000,
        "priority_correction_steps": 50_000_000,
    }

    @classmethod
    def outputs_of(cls, settings: RainbowSettings) -> int:
        """Numbers that say what an action is worth."""
        return settings.atoms

    def build(self) -> None:
        """Logits of all atoms of all actions, in two streams of noisy layers."""
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
        s, rows, rate = self.settings, self.rows(batch), self.rate(clock)
        self.prepare(clock)
        loss, losses, found = self.loss(rows)
        self.optimiser.zero_grad()
        loss.backward()
        found["gradient_norm"] = clip_grad_norm_(self.optimiser.gradient, s.max_gradient_norm)
        self.optimiser.step(rate)
        self.publish(clock)
        told = metrics.as_floats(found) | {"epsilon": self.epsilon.item(), "learning_rate": rate}
        return told, self.judged(losses, rows)

    def loss(self, rows: Tensors) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The loss () of a minibatch; each row's own (M,) and what is told of them, both without gradient."""
        logits, following, choosing = self.evaluated(rows)
        return loss_of(logits, following, choosing, rows, following.new_tensor(self.support))
