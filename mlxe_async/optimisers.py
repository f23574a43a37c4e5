"""Steps down a gradient, on one flat vector of weights.

Through torch's functional forms: its optimiser classes import the compiler on their first use, which costs a second at
every start of a learner, and more time in each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers of its steps, its own tensors; `load_state_dict` takes such a dictionary."""
        return {"first_moment": self.first_moment, "second_moment": self.second_moment, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from tensors of another one of this kind."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])

    def forget(self) -> None:
        """Remember nothing of the steps so far."""
        for tensor in (self.first_moment, self.steps):
            tensor.zero_()
        self.second_moment.fill_(1.0 if self._kind == "rmsprop" else 0.0)

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
        if self._weights.is_cpu:
            self._step_here()
        else:
            self._on_device({})

    def step_on_device(self, _nothing: Mapping[str, Any]) -> tuple[()]:
        """One step by operations alone: the host reads nothing, so that it can be recorded without waits."""
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
        if self._kind == "adam":  # none of its tensors asks for a gradient, so nothing is recorded
            steps = self.steps.numpy()  # the same memory; a call of torch for one number takes as long as the step
            steps += 1
            self._fused_adam(self.learning_rate)
            return
        import torch

        beta1, beta2 = self._betas
        with torch.no_grad():
            if self._kind == "rmsprop":
                self.steps += 1
                self._rmsprop(self.learning_rate)
            else:
                from torch.optim.radam import radam

                moments = [self.first_moment], [self.second_moment]
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


class OfParameters(FlatOptimiser):
    """An optimiser of ordinary parameters, in one operation on one vector.

    All parameters become views on `weights`, and their gradients views on `gradient`. They stay ordinary parameters of
    ordinary modules; `backward` adds into the vector. Where a module's `zero_grad` or anything else put another tensor
    in their place, its numbers are taken over before the step.

    Args:
        kind: see `FlatOptimiser`.
        parameters: tensors that are learned, on one device and of one type.
        lr: learning rate of `step()`.
        eps: keeps the division by the root of the second moment finite.
        betas: decay of the first and of the second moment.
    """

    def __init__(
        self,
        kind: OptimiserKind,
        parameters: Iterable[torch.Tensor],
        lr: float,
        eps: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.parameters = list(parameters)
        super().__init__(kind, *as_one(self.parameters), eps=eps, betas=betas)
        self.set_rate(lr)
        self._places = self._placed()

    def attach(self) -> None:
        """Begin anew with the parameters where they are now, if they have moved to another device."""
        if self.parameters[0].device != self._weights.device:
            rate = self.learning_rate
            super().__init__(self._kind, *as_one(self.parameters), eps=self._eps, betas=self._betas)
            self.set_rate(rate)
            self._places = self._placed()

    def step(self, learning_rate: float | None = None) -> None:
        """One step, with this learning rate or the one that was told before."""
        for one, (here, there) in zip(self.parameters, self._places, strict=True):
            if one.data_ptr() != here or one.grad is None or one.grad.data_ptr() != there:
                self._take_over()
                break
        super().step(learning_rate)

    def _placed(self) -> list[tuple[int, int]]:
        """Return where the numbers of each parameter and of its gradient are."""
        size, starts = (
            self._weights.element_size(),
            itertools.accumulate((p.numel() for p in self.parameters), initial=0),
        )
        weights, slopes = self._weights.data_ptr(), self.gradient.data_ptr()
        return [
            (weights + size * start, slopes + size * start) for start, _ in zip(starts, self.parameters, strict=False)
        ]

    def _take_over(self) -> None:
        """Have all numbers lie in the two vectors again."""
        slopes = [None if one.grad is None else one.grad.detach().clone() for one in self.parameters]
        weights, gradient = as_one(self.parameters)
        for one, slope in zip(self.parameters, slopes, strict=True):
            if slope is not None:
                one.grad.copy_(slope)  # type: ignore[union-attr] # as_one has just given it one
        self._weights.copy_(weights)
        self.gradient.copy_(gradient)
        place(self.parameters, self._weights, self.gradient)
        self._places = self._placed()

    @property
    def weights(self) -> torch.Tensor:
        """All parameters, one after the other (P,)."""
        return self._weights


class Adam(OfParameters):
    """Adam (Kingma and Ba 2015) as `torch.optim.Adam` has it; see `OfParameters`."""

    kind: ClassVar[OptimiserKind] = "adam"

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(self.kind, parameters, lr, eps, betas)


class RAdam(Adam):
    """RAdam (Liu et al. 2020) as `torch.optim.RAdam` has it; see `OfParameters`."""

    kind = "radam"


class RMSprop(OfParameters):
    """RMSProp (Hinton 2012) as in A3C's code: the average is 1 at first, and epsilon stands under the root."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 1e-2, eps: float = 1e-8) -> None:
        super().__init__("rmsprop", parameters, lr, eps)


def as_one(parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Have parameters, and their gradients, be views on two vectors (P,), which are returned."""
    import torch

    flat = torch.cat([_laid(one.detach()).reshape(-1) for one in parameters])
    gradient = torch.zeros_like(flat)
    place(parameters, flat, gradient)
    return flat, gradient


def place(parameters: Sequence[torch.Tensor], flat: torch.Tensor, gradient: torch.Tensor) -> None:
    """Have parameters, and their gradients, be views on these vectors (P,)."""
    start = 0
    for one in parameters:
        stop = start + one.numel()
        weights, slopes = (vector[start:stop].view(_laid(one).shape) for vector in (flat, gradient))
        one.data, one.grad = _laid(weights, one), _laid(slopes, one)
        start = stop


def _laid(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor as it lies in memory: transposed, where `like` (left out, it itself) has its columns one by one."""
    like = tensor if like is None else like
    return tensor.T if like.dim() == 2 and like.stride(0) == 1 and like.stride(1) > 1 else tensor
