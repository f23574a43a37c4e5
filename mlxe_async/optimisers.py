"""Steps down a gradient, on one flat vector of weights.

Through torch's functional forms: its optimiser classes import the compiler on their first use, which costs a second at
every start of a learner, and more time in each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from mlxe_async.gpu import Captured

if TYPE_CHECKING:
    import torch

OptimiserKind = Literal["radam", "adam", "rmsprop"]
RMSPROP_DECAY = 0.99


class FlatOptimiser:
    """RAdam (Liu et al. 2020), Adam (Kingma and Ba 2015) or RMSProp (Hinton 2012), without weight decay.

    RMSProp's average is 1 at first and decays by 0.99, and its epsilon stands under the root, as in A3C's code.

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
        self._weights, self.gradient = weights, gradient
        self.first_moment = torch.zeros_like(weights)
        self.second_moment = torch.ones_like(weights) if kind == "rmsprop" else torch.zeros_like(weights)
        self.steps = torch.zeros((), device=weights.device)
        self.learning_rate = 0.0
        # A step that was recorded reads the rate where it is.
        self._rate = torch.zeros((), device=weights.device)
        written = (weights, self.first_moment, self.second_moment, self.steps)
        self._on_device = Captured(self.step_on_device, str(weights.device), writes=written)

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

    def zero_grad(self) -> None:
        """Begin a new gradient."""
        self.gradient.zero_()

    def set_rate(self, learning_rate: float) -> None:
        """The learning rate of the steps to come."""
        if learning_rate != self.learning_rate:
            self.learning_rate = learning_rate
            self._rate.fill_(learning_rate)

    def step(self, learning_rate: float | None = None) -> None:
        """One step, with this learning rate or that of `set_rate`."""
        if learning_rate is not None:
            self.set_rate(learning_rate)
        if self._weights.device.type == "cpu":
            self._step_here()
        else:
            self._on_device({})

    def step_on_device(self, _nothing: Mapping[str, Any]) -> tuple[()]:
        """One step by operations alone: the host reads nothing, so that it can be recorded and nobody waits."""
        import torch

        beta1, beta2 = self._betas
        with torch.no_grad():
            self.steps += 1
            if self._kind == "adam":
                self._fused_adam(self._rate)
                return ()
            if self._kind == "rmsprop":
                self._rmsprop(self._rate)
                return ()
            self.first_moment.lerp_(self.gradient, 1 - beta1)
            self.second_moment.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
            steps, longest = self.steps.double(), 2 / (1 - beta2) - 1  # single precision takes 1 - beta2^t for 0
            power = beta2**steps
            length = longest - 2 * steps * power / (1 - power)
            share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            adaptive = (share.clamp(min=0) * (1 - power)).sqrt() / (self.second_moment.sqrt() + self._eps)
            factor = torch.where(length > 5, adaptive, torch.ones_like(adaptive))
            self._weights -= self._rate / (1 - beta1**steps) * factor * self.first_moment
        return ()

    def _rmsprop(self, learning_rate: Any) -> None:
        self.second_moment.mul_(RMSPROP_DECAY).addcmul_(self.gradient, self.gradient, value=1 - RMSPROP_DECAY)
        self._weights -= learning_rate * self.gradient / (self.second_moment + self._eps).sqrt()

    def _fused_adam(self, learning_rate: Any) -> None:
        import torch

        # The very kernel of torch.optim.Adam(fused=True): what lies before it takes longer than it does.
        torch._fused_adam_(
            [self._weights],
            [self.gradient],
            [self.first_moment],
            [self.second_moment],
            [],
            [self.steps],
            lr=learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def _step_here(self) -> None:
        import torch
        from torch.optim.radam import radam

        beta1, beta2 = self._betas
        moments = [self.first_moment], [self.second_moment]
        with torch.no_grad():
            if self._kind == "rmsprop":
                self.steps += 1
                self._rmsprop(self.learning_rate)
            elif self._kind == "radam":
                radam(
                    [self._weights],
                    [self.gradient],
                    *moments,
                    [self.steps],
                    foreach=False,
                    beta1=beta1,
                    beta2=beta2,
                    lr=self.learning_rate,
                    weight_decay=0.0,
                    eps=self._eps,
                )
            else:
                self.steps += 1
                self._fused_adam(self.learning_rate)
