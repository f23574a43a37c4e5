"""Dense networks of equal layers side by side: outputs and gradients in memory that is kept.

Twin critics take one product for each layer. Each result is written where that of the last call was: fresh memory of
some hundred kilobytes is given back to the system each time, and costs more than the product. Inputs have a column of
ones, so that the first layer's biases come with its weights. What a call does is laid down once for a number of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mlxe_async.fast.products import addition, product, sums
from mlxe_async.networks import Floats
from mlxe_async.networks.dense import Dense

Step = Callable[[], object]


class Layer(NamedTuple):
    """A layer's numbers, as views on those of all networks."""

    weight: torch.Tensor
    """(C, in, out)."""
    bias: torch.Tensor | None
    """(C, 1, out); None where it is the last row of the weight."""


class Scratch:
    """Memory for hidden layers, by their numbers, which several networks may use in turn: so it stays in the cache."""

    def __init__(self) -> None:
        self._kept = dict[int, torch.Tensor]()
        self.pieces = 0
        """Count of those made so far: a network that has seen fewer asks again."""

    def tensor(self, number: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return memory of a layer; what was written there by its other users is lost."""
        size = math.prod(shape)
        if number not in self._kept or len(self._kept[number]) < size:
            self._kept[number] = torch.empty(size)
            self.pieces += 1
        return self._kept[number][:size].view(shape)


class Stacked:
    """C networks on one flat vector of weights.

    Args:
        networks: of equal layers, with ReLU or tanh between them, whose parameters are views on `weights`, in order.
        weights: of all of them (C P,).
        gradient: where `backward` writes (C P,); None: it is not asked for.
        scratch: memory for hidden layers; None: its own. Between `forward` and a way back no other network uses it.
    """

    def __init__(
        self,
        networks: Sequence[Dense],
        weights: torch.Tensor,
        gradient: torch.Tensor | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        layers = [one for one in networks[0] if isinstance(one, nn.Linear)]
        self._tanh = any(isinstance(one, nn.Tanh) for one in networks[0])
        self.sizes = [layers[0].in_features, *(one.out_features for one in layers)]
        self.copies, self.weights, self.gradient = len(networks), weights, gradient
        by_inputs = [one.weight.stride(0) == 1 for one in layers]
        self._layers = _views(weights, self.sizes, len(networks), by_inputs)
        self._slopes = [] if gradient is None else _views(gradient, self.sizes, len(networks), by_inputs)
        self._scratch = scratch or Scratch()
        self._rows = self._rows_back = self._pieces = -1
        self._forward, self._backward = list[Step](), list[Step]()

    def forward(self, *parts: Floats) -> Floats:
        """Outputs (C, M, n) for inputs (M, m), which all networks share; valid until the next call.

        Args:
            parts: of the inputs, side by side.
        """
        if len(parts[0]) != self._rows or self._pieces != self._scratch.pieces:
            self._provide(len(parts[0]))
        np.concatenate(parts, 1, out=self._inputs)
        for step in self._forward:
            step()
        return self._outputs

    def backward(self, gradient: Floats) -> None:
        """Overwrite the gradient by the weights with what follows from that by the outputs (C, R, n).

        R may be less than the M rows of the last `forward`: nothing flows back into the others. Hidden layers are
        overwritten, so there is one way back, this or `by_input`, for each way forward.
        """
        if gradient.shape[1] != self._rows_back:
            self._provide_back(gradient.shape[1])
        self._by_outputs[:] = gradient
        for step in self._backward:
            step()

    def by_input(self, gradient: Floats, first: int) -> Floats:
        """The gradient by the inputs from the `first` on (M, m - first), given that by all outputs (C, M, n).

        That by the weights stays as it is.
        """
        if gradient.shape[1] != self._rows_back:
            self._provide_back(gradient.shape[1])
        self._by_outputs[:] = gradient
        for step in self._down:
            step()
        turned = self._layers[0].weight.transpose(1, 2)[:, :, first : self.sizes[0]]
        found = torch.empty(self.copies, gradient.shape[1], turned.shape[2])
        product(self._by_first, turned, found)()
        return np.asarray(np.add.reduce(found.numpy()))

    def _provide(self, rows: int) -> None:
        """Have memory for a way forward."""
        self._rows, self._rows_back, self._forward = rows, -1, []
        inputs = torch.ones(rows, self._layers[0].weight.shape[1])  # the column of ones included
        self._inputs: Floats = inputs.numpy()[:, : self.sizes[0]]
        self._found = [inputs.expand(self.copies, *inputs.shape)]
        hidden = len(self._layers) - 1
        for number, ((weight, bias), outputs) in enumerate(zip(self._layers, self.sizes[1:], strict=True)):
            shape = self.copies, rows, outputs
            found = self._scratch.tensor(number, shape) if number < hidden else torch.empty(shape)
            self._forward.append(product(self._found[-1], weight, found))
            if bias is not None:
                self._forward.append(addition(found, bias))  # baddbmm would first write it, and then read it again
            self._forward.append(found.tanh_ if self._tanh else partial(found.clamp_min_, 0))
            self._found.append(found)
        self._pieces = self._scratch.pieces
        self._forward.pop()  # outputs are as they are
        self._outputs: Floats = self._found[-1].numpy()

    def _provide_back(self, rows: int) -> None:
        """Have memory for a way back."""
        self._rows_back, self._backward, self._down = rows, list[Step](), list[Step]()
        above = torch.empty(self.copies, rows, self.sizes[-1])
        self._by_outputs: Floats = above.numpy()
        for number in reversed(range(len(self._layers))):
            below, weight = self._found[number][:, :rows], self._layers[number].weight
            if self._slopes:
                slope, bias = self._slopes[number]
                self._backward.append(product(below.transpose(1, 2), above, slope))
                if bias is not None:
                    self._backward.append(sums(above, bias))
            if number:
                into = self._scratch.tensor(number, (self.copies, rows, self.sizes[number]))
                down = [product(above, weight.transpose(1, 2), into), self._damping(into, below)]
                self._backward += down
                self._down += down
                above = into
        self._by_first = above

    def _damping(self, into: torch.Tensor, below: torch.Tensor) -> Step:
        """Return what turns a gradient by an activation, in place, into that by what went into it."""
        if self._tanh:
            return partial(torch.ops.aten.tanh_backward.grad_input, into, below, grad_input=into)
        return partial(torch.ops.aten.threshold_backward.grad_input, into, below, 0, grad_input=into)


def _views(flat: torch.Tensor, sizes: Sequence[int], copies: int, by_inputs: Sequence[bool]) -> list[Layer]:
    """All layers on one vector of all networks.

    The first layer's bias comes with its weight, if it lies behind its rows and there are several outputs.
    """
    length, start, found = len(flat) // copies, 0, list[Layer]()
    for (fan_in, fan_out), is_laid in zip(itertools.pairwise(sizes), by_inputs, strict=True):
        strides = (fan_out, 1) if is_laid else (1, fan_in)
        if not found and is_laid and fan_out > 1:
            found.append(Layer(flat.as_strided((copies, fan_in + 1, fan_out), (length, *strides), start), None))
        else:
            weight = flat.as_strided((copies, fan_in, fan_out), (length, *strides), start)
            bias = flat.as_strided((copies, 1, fan_out), (length, fan_out, 1), start + fan_in * fan_out)
            found.append(Layer(weight, bias))
        start += (fan_in + 1) * fan_out
    return found
