"""Dense networks of equal layers side by side: outputs and gradients by torch's products, in memory that is kept.

Twin critics take one product for each layer. Each result is written where that of the last call was: fresh memory of
some hundred kilobytes is given back to the system each time, and costs more than the product. Inputs have a column of
ones, so that the first layer's biases come with its weights. The learner's threads share the work.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mlxe_async.networks import Floats
from mlxe_async.networks.dense import Dense

Layer = tuple[torch.Tensor, torch.Tensor | None]
"""Weight (C, in, out) and bias (C, 1, out), which is None where it is the last row of the weight."""


class Forward(NamedTuple):
    """A layer on the way forward, as views: `found` is what comes out of `below`."""

    below: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    found: torch.Tensor
    each: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]
    """Bias, `below`, weight and `found` of each network, where there is one output; else nothing."""


class Backward(NamedTuple):
    """A layer on the way back, as views: `into` is the gradient by `below`, of that by what came out."""

    below: torch.Tensor
    weight: torch.Tensor
    """Transposed."""
    into: torch.Tensor
    single: bool
    """There is one output."""


class Slopes(NamedTuple):
    """A layer's gradient by its weights, as views."""

    turned: torch.Tensor
    """The inputs, transposed."""
    weight: torch.Tensor
    bias: torch.Tensor | None
    each: list[tuple[torch.Tensor, torch.Tensor]]
    """`turned` and `weight` of each network, where there is one output; else nothing."""


class Stacked:
    """C networks on one flat vector of weights.

    Args:
        networks: of equal layers, with ReLU or tanh between them, whose parameters are views on `weights`, in order.
        weights: of all of them (C P,).
        gradient: where `backward` writes (C P,); None: it is not asked for.
    """

    def __init__(self, networks: Sequence[Dense], weights: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        layers = [one for one in networks[0] if isinstance(one, nn.Linear)]
        self._tanh = any(isinstance(one, nn.Tanh) for one in networks[0])
        self.sizes = [layers[0].in_features, *(one.out_features for one in layers)]
        self.copies, self.weights, self.gradient = len(networks), weights, gradient
        by_inputs = [one.weight.stride(0) == 1 for one in layers]
        self._layers = _views(weights, self.sizes, len(networks), by_inputs)
        self._slopes = [] if gradient is None else _views(gradient, self.sizes, len(networks), by_inputs)
        self._turned = [weight.transpose(1, 2) for weight, _ in self._layers]
        self._rows = self._rows_back = -1
        self._forward, self._backward, self._into = list[Forward](), list[Backward](), list[Slopes]()

    def forward(self, *parts: Floats) -> Floats:
        """Outputs (C, M, n) for inputs (M, m), which all networks share; valid until the next call.

        Args:
            parts: of the inputs, side by side.
        """
        if len(parts[0]) != self._rows:
            self._provide(len(parts[0]))
        np.concatenate(parts, 1, out=self._inputs)
        for below, weight, bias, found, each in self._forward:
            if each:  # a product with one column takes as long as with sixty
                for its_bias, its_below, its_weight, its_found in each:
                    torch.addmv(its_bias, its_below, its_weight, out=its_found)
            else:
                torch.bmm(below, weight, out=found)
                if bias is not None:
                    found.add_(bias)  # baddbmm would first write it, and then read it again
            if found is not self._last:
                found.tanh_() if self._tanh else found.clamp_min_(0)
        return self._outputs

    def backward(self, gradient: Floats) -> None:
        """Overwrite the gradient by the weights with what follows from that by the outputs (C, R, n).

        R may be less than the M rows of the last `forward`: nothing flows back into the others.
        """
        if gradient.shape[1] != self._rows_back:
            self._provide_back(gradient.shape[1])
        above = torch.from_numpy(gradient)
        for into, layer in zip(self._into, [*self._backward, None], strict=True):
            if into.each:
                for (turned, weight), its_above in zip(into.each, above[..., 0], strict=True):
                    torch.mv(turned, its_above, out=weight)
            else:
                torch.bmm(into.turned, above, out=into.weight)
            if into.bias is not None:
                torch.sum(above, 1, keepdim=True, out=into.bias)
            if layer is not None:
                above = self._down(layer, above)

    def by_input(self, gradient: Floats, first: int) -> Floats:
        """The gradient by the inputs from the `first` on (M, m - first), given that by all outputs (C, M, n).

        That by the weights stays as it is.
        """
        if gradient.shape[1] != self._rows_back:
            self._provide_back(gradient.shape[1])
        above = torch.from_numpy(gradient)
        for layer in self._backward:
            above = self._down(layer, above)
        found = torch.bmm(above, self._turned[0][:, :, first : self.sizes[0]])
        return np.asarray(found.sum(0).numpy())

    def _down(self, layer: Backward, above: torch.Tensor) -> torch.Tensor:
        """The gradient by what went into a layer, given that by what came out."""
        below, weight, into, single = layer
        torch.mul(above, weight, out=into) if single else torch.bmm(above, weight, out=into)
        if self._tanh:
            torch.ops.aten.tanh_backward.grad_input(into, below, grad_input=into)
        else:
            torch.ops.aten.threshold_backward.grad_input(into, below, 0, grad_input=into)
        return into

    def _provide(self, rows: int) -> None:
        """Have memory for a way forward."""
        self._rows, self._rows_back, self._forward = rows, -1, []
        inputs = torch.ones(rows, self._layers[0][0].shape[1])  # the column of ones included
        self._inputs: Floats = inputs.numpy()[:, : self.sizes[0]]
        below = inputs.expand(self.copies, *inputs.shape)
        for (weight, bias), outputs in zip(self._layers, self.sizes[1:], strict=True):
            found = torch.empty(self.copies, rows, outputs)
            each = []
            if bias is not None and outputs == 1 and rows:
                each = [*zip(bias[:, 0], below, weight[..., 0], found[..., 0], strict=True)]
            self._forward.append(Forward(below, weight, bias, found, each))
            below = found
        self._last, self._outputs = below, below.numpy()

    def _provide_back(self, rows: int) -> None:
        """Have memory for a way back."""
        self._rows_back, self._backward, self._into = rows, [], []
        for number in reversed(range(len(self._layers))):
            below, single = self._forward[number].below[:, :rows], bool(self._forward[number].each)
            if number:
                into = torch.empty(self.copies, rows, self.sizes[number])
                self._backward.append(Backward(below, self._turned[number], into, single))
            if self._slopes:
                (weight, bias), turned = self._slopes[number], below.transpose(1, 2)
                each = [*zip(turned, weight[..., 0], strict=True)] if single else []
                self._into.append(Slopes(turned, weight, bias, each))


def _views(flat: torch.Tensor, sizes: Sequence[int], copies: int, by_inputs: Sequence[bool]) -> list[Layer]:
    """All layers on one vector of all networks.

    The first layer's bias comes with its weight, if it lies behind its rows and there are several outputs.
    """
    length, start, found = len(flat) // copies, 0, list[Layer]()
    for (fan_in, fan_out), is_laid in zip(itertools.pairwise(sizes), by_inputs, strict=True):
        strides = (fan_out, 1) if is_laid else (1, fan_in)
        if not found and is_laid and fan_out > 1:
            found.append((flat.as_strided((copies, fan_in + 1, fan_out), (length, *strides), start), None))
        else:
            weight = flat.as_strided((copies, fan_in, fan_out), (length, *strides), start)
            bias = flat.as_strided((copies, 1, fan_out), (length, fan_out, 1), start + fan_in * fan_out)
            found.append((weight, bias))
        start += (fan_in + 1) * fan_out
    return found
