"""Keys of DQN, C51 and Rainbow, and what their switches are.

Papers: van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016 (prioritised replay), Fortunato
et al. 2018 (noisy networks). Where we differ: the gradient of layers that both streams share is not shrunk by sqrt 2.

Prioritised replay is proportional: P = p^alpha / sum p^alpha with p = |error| + 0.001, drawn by equal parts of the sum.
Importance weights are (N P)^-beta, N the rows that are stored, over the largest of the same minibatch (the other
convention takes the largest of the whole memory). New rows get the largest priority there was, which fades by a
hundredth with each plan of updates, so that one great error does not count for ever.
"""

from __future__ import annotations

from typing import Literal

from mlxe_async.algorithms.interface import Priorities
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.exploration import NoisyValueExplorationFields
from mlxe_async.algorithms.parts.fields import BOOTSTRAPS, key, shared

Loss = Literal["huber", "square"]
Scale = Literal["return", "survival"]
JUDGED_APART = "(target_every > 1 or target_rate < 1 or noisy)"  # two networks that differ
UNEVEN = "prioritised and priority_exponent > 0"
FLOOR = 1e-3  # of priorities: no row is ever out of reach
FADES = 0.99

OF_RETURNS = 'value_scale == "return"'

rescaling = shared(
    "Learn h(Q) = sign(Q)(sqrt(|Q| + 1) - 1) + Q / 1000: large returns count less.", OF_RETURNS, stays=True
)
scale = shared("survival: sigmoid(Q) = 1 - E discount^T, T steps to failure.", stays=True)
loss = shared("huber grows only linearly with large errors, square trusts them fully.")
double = shared(
    "Values are less exaggerated: one network chooses, the other one judges.", f"{BOOTSTRAPS} and {JUDGED_APART}"
)
dueling = shared("A state's value is learned once for all actions: Q = V + A - mean A.", stays=True)
prioritised = shared("Rows come more often if they were misjudged, and weigh less then.", stays=True)
priority_exponent = shared("Power of priorities; higher draws more unevenly.", "prioritised", ge=0, le=1)


class ValueBasedFields(fields.ReplayedFields, NoisyValueExplorationFields, fields.ValueNetworkFields):
    """The fields of `[algorithm]` that all three have."""

    discount: float = fields.discount(0.99)
    n_step: int = fields.n_step(3)
    return_scale: float = fields.return_scale(1.0)
    double: bool = double(True)
    dueling: bool = dueling(False)
    prioritised: bool = prioritised(False)
    priority_exponent: float = priority_exponent(0.6)
    priority_correction: float = key(
        0.4, "Exponent of importance weights at the start; higher undoes more of the bias.", UNEVEN, ge=0, le=1
    )
    priority_correction_last: float = key(1.0, "Exponent after priority_correction_steps.", UNEVEN, ge=0, le=1)
    priority_correction_steps: int = key(
        100_000,
        "Environment steps until priority_correction_last; more keep the bias longer.",
        f"{UNEVEN} and priority_correction != priority_correction_last",
        ge=1,
    )
    batch: int = fields.batch(64)
    start_rows: int = fields.start_rows(1000)
    train_every: int = fields.train_every(2)
    min_updates: int = key(0, "If not 0, updates per segment, an episode or a part of one, not train_every.", ge=0)
    target_every: int = fields.target_every(128)
    target_rate: float = fields.target_rate(1.0)
    learning_rate: float = fields.learning_rate(1e-3)
    learning_rate_last: float = fields.learning_rate_last(1e-4)
    anneal_steps: int = fields.anneal_steps(100_000)
    max_gradient_norm: float = fields.max_gradient_norm(10.0)

    @property
    def how_to_draw(self) -> Priorities:
        """The priorities that the memory is told."""
        if not self.prioritised:
            return Priorities()
        return Priorities(
            "td",
            exponent=self.priority_exponent,
            correction=self.priority_correction,
            correction_last=self.priority_correction_last,
            correction_steps=self.priority_correction_steps,
            largest_decay=FADES,
        )
