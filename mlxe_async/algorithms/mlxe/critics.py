"""The meaning of a critic's outputs: a return, a chance to survive, or a distribution of returns.

Papers: Bellemare et al. 2017 (categorical distributions of returns). The survival scale is ours: the logit of
1 - E discount^T, with T the steps to failure, which cross-entropy fits evenly whether failure is near or far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, model_validator

from mlxe_async.algorithms.parts.fields import key
from mlxe_async.maths import categorical, distributional
from mlxe_async.networks import Floats

if TYPE_CHECKING:
    import torch

Scale = Literal["return", "survival", "categorical"]
OF_ATOMS = 'value_scale == "categorical"'


class CriticFields(BaseModel):
    """Settings of the kind of the critic's values."""

    value_scale: Scale = key(
        "return", "survival: sigmoid(V) = 1 - E discount^T, T steps to failure; categorical: atoms.", stays=True
    )
    atoms: int = key(
        51, "categorical: values told apart; more are finer and slower.", OF_ATOMS, stays=True, ge=2, le=10_001
    )
    value_low: float = key(
        -10.0, "categorical: the lowest atom; lower covers worse returns, coarser.", OF_ATOMS, stays=True
    )
    value_high: float = key(
        100.0, "categorical: the highest; higher covers better returns, coarser.", OF_ATOMS, stays=True
    )

    @model_validator(mode="after")
    def _ends_in_order(self) -> CriticFields:
        if self.value_low >= self.value_high:
            raise ValueError(f"value_low: got {self.value_low}, expected less than value_high = {self.value_high}")
        return self


class Critic:
    """Makes values and targets out of a critic's raw outputs `(M,)`, or `(M, atoms)` if they are categorical."""

    def __init__(self, fields: CriticFields) -> None:
        self.scale = fields.value_scale
        self.outputs = fields.atoms if self.scale == "categorical" else 1
        self.support: Floats = np.linspace(fields.value_low, fields.value_high, self.outputs, dtype=np.float32)

    def value(self, outputs: torch.Tensor) -> torch.Tensor:
        """V (M,), on the scale of targets."""
        if self.scale == "categorical":
            return distributional.mean(outputs.softmax(-1), outputs.new_tensor(self.support))
        return outputs.sigmoid() if self.scale == "survival" else outputs

    def target(
        self, partial: torch.Tensor, coefficient: torch.Tensor, following: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what to learn of partial + coefficient * V, given the outputs that stand for V; and its mean (M,)."""
        if self.scale != "categorical":
            target = partial + coefficient * self.value(following)
            return target, target
        support = following.new_tensor(self.support)
        target = distributional.project(following.softmax(-1), partial, coefficient, support)
        return target, distributional.mean(target, support)

    def expected(self, target: torch.Tensor) -> torch.Tensor:
        """The mean (M,) of targets (M,), or of distributions (M, atoms)."""
        if self.scale != "categorical":
            return target
        return distributional.mean(target, target.new_tensor(self.support))

    def appraised(self, outputs: Floats) -> Floats:
        """V (N,) of the outputs (N, outputs) of a numpy network."""
        if self.scale == "categorical":
            result: Floats = np.exp(categorical.log_softmax(outputs)) @ self.support
            return result
        value = outputs[..., 0]
        return np.asarray(0.5 * (1 + np.tanh(0.5 * value)) if self.scale == "survival" else value)
