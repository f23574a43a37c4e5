"""A network for learning that numpy evaluates and differentiates, as a function that autograd knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.networks.flat import Floats, unflatten
from mlxe_async.networks.gradients import NumpyGradients
from mlxe_async.networks.learning import TorchNetwork
from mlxe_async.networks.shape import Network

if TYPE_CHECKING:
    import torch


def learnable(network: Network, flat: Floats, device: str = "cpu") -> TorchNetwork:
    """A network without a body, with gradients, in the quickest way for this device and this process's threads."""
    import torch

    alone = device == "cpu" and torch.get_num_threads() == 1  # torch shares its sums among threads, numpy does not
    kind = QuickNetwork if alone and NumpyGradients.fits(network) else TorchNetwork
    return kind(network, flat, device)


def quick_gradients(learned: TorchNetwork) -> NumpyGradients | None:
    """What differentiates a network without a body quicker than autograd; None where there is no such thing."""
    fits = learned.flat.device.type == "cpu" and NumpyGradients.fits(learned.network)
    return NumpyGradients(learned) if fits else None


class QuickNetwork(TorchNetwork):
    """A `TorchNetwork` on the CPU whose outputs and gradients come from `NumpyGradients`: the same but for rounding.

    A loss is written as for any network of torch's. Only second derivatives, and gradients by the observations, are
    left to autograd: those by the observations are found where they are asked for, second ones are refused.
    """

    def __init__(self, network: Network, flat: Floats, device: str = "cpu") -> None:
        super().__init__(network, flat, device)
        self._spare: list[_Tape] = []
        self._function = _function()

    def __call__(self, observation: torch.Tensor, *heads: str) -> tuple[torch.Tensor, ...]:
        """As `TorchNetwork`'s."""
        import torch

        if observation.requires_grad and torch.is_grad_enabled():
            return super().__call__(observation, *heads)
        tape = self._spare.pop() if self._spare else _Tape(self)
        if torch.is_grad_enabled():
            outputs: tuple[torch.Tensor, ...] = self._function.apply(tape, observation, heads, *self._leaves.values())
            return outputs
        found = tape.by_numpy.outputs(observation.numpy(), heads)
        self._spare.append(tape)
        return tuple(torch.from_numpy(output) for output in found)

    def give_back(self, tape: _Tape) -> None:
        """What a call wrote down was read, and may be written over."""
        self._spare.append(tape)


class _Tape:
    """What one call of a network writes down for the way back, and the gradient that this finds."""

    def __init__(self, learned: QuickNetwork) -> None:
        import torch

        self.learned = learned
        self.gradient = np.zeros(learned.flat.numel(), np.float32)
        self.by_numpy = NumpyGradients(learned, self.gradient)
        parts = unflatten(self.gradient, learned.network.parameters)
        self.gradients = tuple(torch.from_numpy(part) for part in parts.values())
        self.written = False

    def read(self, gradients: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """The gradient by each parameter."""
        if not self.written:
            raise RuntimeError("QuickNetwork: expected one backward() for each call, got another; use TorchNetwork")
        self.gradient.fill(0)
        self.by_numpy.backward(gradients)
        self.written = False
        self.learned.give_back(self)
        return self.gradients


def _function() -> Any:
    """A class of torch's, made where torch is there."""
    import torch
    from torch.autograd.function import once_differentiable

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tape: _Tape, observation: Any, heads: tuple[str, ...], *_: Any) -> Any:
            outputs = tape.by_numpy.forward(observation.numpy())
            tape.written = True
            ctx.tape, ctx.heads = tape, heads
            return tuple(torch.from_numpy(outputs[head].copy()) for head in heads)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *gradients: Any) -> Any:
            known = {head: one.numpy() for head, one in zip(ctx.heads, gradients, strict=True)}
            return None, None, None, *ctx.tape.read(known)

    return Through
