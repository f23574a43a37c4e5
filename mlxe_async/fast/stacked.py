"""Dense networks of equal layers side by side: outputs and gradients by torch's products, in memory that is kept.

Twin critics take one product for each layer. Each result is written where that of the last call was: fresh memory of
some hundred kilobytes is given back to the system each time, and costs more than the product. The learner's threads
share the work.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from mlxe_async.networks.dense import Dense


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
        self._rows = 0
        self._found: list[torch.Tensor] = []
        self._back: list[torch.Tensor] = []
        self._given = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (C, M, n) for inputs (M, m), which all networks share; valid until the next call."""
        self._provide(len(x))
        self._given = below = x.expand(self.copies, *x.shape)
        for number, (weight, bias) in enumerate(self._layers):
            found = self._found[number]
            if weight.shape[2] == 1:
                for one in range(self.copies):
                    torch.addmv(bias[one, 0], below[one], weight[one, :, 0], out=found[one, :, 0])
            else:
                torch.bmm(below, weight, out=found)
                found.add_(bias)  # baddbmm would first write it, and then read it again
            if number < len(self._layers) - 1:
                found.tanh_() if self._tanh else found.clamp_min_(0)
            below = found
        return below

    def backward(self, gradient: torch.Tensor) -> None:
        """Overwrite the gradient by the weights with what follows from that by the outputs (C, R, n).

        R may be less than the M rows of the last `forward`: nothing flows back into the others.
        """
        rows = gradient.shape[1]
        for number in reversed(range(len(self._layers))):
            below = (self._found[number - 1] if number else self._given)[:, :rows]
            into_weight, into_bias = self._slopes[number]
            if into_weight.shape[2] == 1:  # a product with one column takes as long as with sixty
                for one in range(self.copies):
                    torch.mv(below[one].T, gradient[one, :, 0], out=into_weight[one, :, 0])
            else:
                torch.bmm(below.transpose(1, 2), gradient, out=into_weight)
            torch.sum(gradient, 1, keepdim=True, out=into_bias)
            if number:
                gradient = _spread(gradient, self._layers[number][0], self._back[number - 1][:, :rows])
                self._damp(gradient, below)

    def by_input(self, which: int, gradient: torch.Tensor, rows: torch.Tensor, first: int) -> torch.Tensor:
        """The gradient by the inputs from the `first` on (R, m - first) of one network; that by weights stays.

        Args:
            which: of the networks.
            gradient: by its outputs (R, n).
            rows: which R rows of the last `forward` these are, as an index.
            first: of the inputs that are asked for.
        """
        for number in reversed(range(len(self._layers))):
            weight = self._layers[number][0][which]
            if not number:
                return gradient @ weight[first:].T
            gradient = gradient * weight[:, 0] if weight.shape[1] == 1 else gradient @ weight.T
            self._damp(gradient, self._found[number - 1][which].index_select(0, rows))
        raise AssertionError("a network without layers")

    def _damp(self, gradient: torch.Tensor, activity: torch.Tensor) -> None:
        """Times the slope of the activation that gave this activity, in place."""
        if self._tanh:
            torch.ops.aten.tanh_backward.grad_input(gradient, activity, grad_input=gradient)
        else:
            torch.ops.aten.threshold_backward.grad_input(gradient, activity, 0, grad_input=gradient)

    def _provide(self, rows: int) -> None:
        if rows != self._rows:
            self._rows = rows
            self._found = [torch.empty(self.copies, rows, size) for size in self.sizes[1:]]
            self._back = [torch.empty(self.copies, rows, size) for size in self.sizes[1:-1]]


def _views(
    flat: torch.Tensor, sizes: Sequence[int], copies: int, by_inputs: Sequence[bool]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weight (C, in, out) and bias (C, 1, out) of each layer, on one vector of all networks."""
    length, start, found = len(flat) // copies, 0, []
    for (fan_in, fan_out), is_laid in zip(itertools.pairwise(sizes), by_inputs, strict=True):
        strides = (fan_out, 1) if is_laid else (1, fan_in)
        weight = flat.as_strided((copies, fan_in, fan_out), (length, *strides), start)
        start += fan_in * fan_out
        found.append((weight, flat.as_strided((copies, 1, fan_out), (length, fan_out, 1), start)))
        start += fan_out
    return found


def _spread(gradient: torch.Tensor, weight: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """The gradient by a layer's inputs (C, R, in), given that by its outputs (C, R, out)."""
    if weight.shape[2] == 1:
        return torch.mul(gradient, weight.transpose(1, 2), out=into)
    return torch.bmm(gradient, weight.transpose(1, 2), out=into)
