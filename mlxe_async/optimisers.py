"""Steps down a gradient, on one flat vector of weights.

Through torch's functional forms: its optimiser classes import the compiler on their first use, which costs a second at
every start of a learner, and more time in each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

OptimiserKind = Literal["radam", "adam"]


class FlatOptimiser:
    """RAdam (Liu et al. 2020) or Adam (Kingma and Ba 2015), without weight decay.

    Args:
        kind: which of the two.
        weights: what is stepped, in place (P,).
        gradient: where each step finds its gradient (P,).
        eps: keeps the division by the root of the second moment finite.
        betas: decay of the first and of the second moment.
    """

    def __init__(
        self,
        kind: OptimiserKind,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        *,
        eps: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        import torch

        self._kind, self._eps, self._betas = kind, eps, betas
        self._weights, self._gradient = weights, gradient
        self.first_moment = torch.zeros_like(weights)
        self.second_moment = torch.zeros_like(weights)
        self.steps = torch.zeros((), device=weights.device)
        self.learning_rate = 0.0

    def state(self) -> dict[str, Any]:
        """What it remembers of its steps, as arrays by name."""
        return {
            "first_moment": self.first_moment.numpy(force=True).copy(),
            "second_moment": self.second_moment.numpy(force=True).copy(),
            "steps": self.steps.numpy(force=True).copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what another one of this kind remembered."""
        import torch

        for name, tensor in (
            ("first_moment", self.first_moment),
            ("second_moment", self.second_moment),
            ("steps", self.steps),
        ):
            tensor.copy_(torch.as_tensor(state[name]))

    def step(self, learning_rate: float) -> None:
        """One step with this learning rate."""
        import torch
        from torch.optim.radam import radam

        self.learning_rate = learning_rate
        beta1, beta2 = self._betas
        moments = [self.first_moment], [self.second_moment]
        with torch.no_grad():
            if self._kind == "radam":
                radam(
                    [self._weights],
                    [self._gradient],
                    *moments,
                    [self.steps],
                    foreach=False,
                    beta1=beta1,
                    beta2=beta2,
                    lr=learning_rate,
                    weight_decay=0.0,
                    eps=self._eps,
                )
            else:
                self.steps += 1
                # The very kernel of torch.optim.Adam(fused=True): what lies before it takes longer than it does.
                torch._fused_adam_(
                    [self._weights],
                    [self._gradient],
                    *moments,
                    [],
                    [self.steps],
                    lr=learning_rate,
                    beta1=beta1,
                    beta2=beta2,
                    weight_decay=0.0,
                    eps=self._eps,
                    amsgrad=False,
                    maximize=False,
                )
