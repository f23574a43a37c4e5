"""Linear layers as steps of numpy and torch: what to call, on which memory, laid down before it is called.

A step that is laid down knows its arrays and its library. Finding them anew for each of some thirty calls of an update
takes as long as the smaller ones of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mlxe_async.fast.products import THIN, by_torch
from mlxe_async.networks import Floats

LARGE = 1 << 14
"""Numbers from which on torch is the faster one, although a call of it takes a microsecond longer than one of numpy."""
MANY = 512
"""The same of rows, where a bias is added to each: numpy takes as long for a short row as for a long one."""
FEW = 16
"""Outputs of several layers up to which each one's numbers lie together: losses are sums of as few long rows."""
Step = Callable[[], object]


class Layer:
    """A linear layer's numbers, where torch has them.

    Args:
        weight: (in, out).
        bias: (out,).
        whole: both, the bias as a last row (in + 1, out); None: they do not lie so.
    """

    def __init__(self, weight: Floats, bias: Floats, whole: Floats | None = None) -> None:
        self.weight, self.bias, self.whole = weight, bias, whole

    @classmethod
    def of(cls, layer: nn.Linear) -> tuple[Layer, Layer | None]:
        """Return a layer of torch, and its gradients, None if it has none."""
        weight, bias = layer.weight, layer.bias
        slopes = None
        if weight.grad is not None and bias.grad is not None:
            slopes = cls._laid(weight.grad, bias.grad)
        return cls._laid(weight.data, bias.data), slopes

    @classmethod
    def _laid(cls, weight: torch.Tensor, bias: torch.Tensor) -> Layer:
        fan_out, fan_in = weight.shape
        follows = bias.data_ptr() == weight.data_ptr() + weight.numel() * weight.element_size()
        is_one = follows and weight.untyped_storage().data_ptr() == bias.untyped_storage().data_ptr()
        is_laid = is_one and weight.stride() == (1, fan_out) and fan_out > 1
        whole = weight.as_strided((fan_in + 1, fan_out), (fan_out, 1)).numpy() if is_laid else None
        return cls(weight.numpy().T, bias.numpy(), whole)

    def clear(self) -> None:
        """Make all numbers 0."""
        self.weight.fill(0)
        self.bias.fill(0)

    def forward(self, x: Floats, out: Floats) -> Iterator[Step]:
        """Yield what writes the outputs (N, out) for inputs (N, in), or for (N, in + 1) with a column of ones."""
        is_small, has_ones = out.size < LARGE and len(out) < MANY, x.shape[1] > len(self.weight)
        weight, into = self._taking(has_ones=has_ones), out
        if out.strides[1] > out.strides[0]:  # a product takes twice as long where numbers of an output lie together
            into = np.empty(out.shape, np.float32)
        if by_torch(auto=not is_small and min(weight.shape) > THIN):
            yield partial(torch.mm, *(torch.from_numpy(one) for one in (x, weight)), out=torch.from_numpy(into))
        else:
            yield partial(np.matmul, x, weight, into)
        if into is not out:
            yield partial(np.copyto, out, into)
        if not has_ones and (is_small or into is not out):
            yield partial(np.add, out, self.bias, out)
        elif not has_ones:
            yield partial(torch.from_numpy(out).add_, torch.from_numpy(self.bias))

    def back(self, gradient: NDArray[Any], reached: Floats) -> Step:
        """Return what writes the gradient by the inputs (N, in), given that by the outputs (N, out)."""
        weight, is_small = self.weight, reached.size < LARGE
        if weight.shape[1] == 1:  # BLAS takes as long for one column as for sixty
            if is_small:
                return partial(np.multiply, gradient, weight[:, 0], reached)
            known, column = torch.from_numpy(gradient), torch.from_numpy(weight)[:, 0]
            return partial(torch.mul, known, column, out=torch.from_numpy(reached))
        if by_torch(auto=not is_small):
            known, turned = torch.from_numpy(gradient), torch.from_numpy(weight).T
            return partial(torch.mm, known, turned, out=torch.from_numpy(reached))
        return partial(np.matmul, gradient, weight.T, reached)

    def slopes(self, x: Floats, gradient: NDArray[Any], ones: Floats, *, fresh: bool) -> Iterator[Step]:
        """Yield what adds to these gradients, or overwrites them, by that by the outputs (N, out) for inputs x (N, in).

        Args:
            x: with a column of ones (N, in + 1), it tells of the bias too.
            gradient: see above.
            ones: (N,).
            fresh: whether they are overwritten.
        """
        has_ones = x.shape[1] > len(self.weight)
        slope = self._taking(has_ones=has_ones)
        if by_torch(auto=len(gradient) * min(slope.shape) >= LARGE):
            into, parts = torch.from_numpy(slope), (torch.from_numpy(x).T, torch.from_numpy(gradient))
            yield partial(torch.mm, *parts, out=into) if fresh else partial(into.addmm_, *parts)
        else:  # torch's own layers have outputs first
            given = (x.T, gradient, slope) if slope.flags.c_contiguous else (gradient.T, x, slope.T)
            yield partial(np.matmul if fresh else _add_product, *given)
        if not has_ones:  # three times as fast as a sum
            yield partial(np.matmul if fresh else _add_product, ones, gradient, self.bias)

    def _taking(self, *, has_ones: bool) -> Floats:
        if not has_ones:
            return self.weight
        assert self.whole is not None  # noqa: S101 - there is a column of ones only where all first layers are whole
        return self.whole


class Joint:
    """Layers of the same inputs, with their outputs side by side.

    Args:
        parts: the layers.
        slopes: their gradients; empty: not asked for.
    """

    def __init__(self, parts: Sequence[Layer], slopes: Sequence[Layer]) -> None:
        ends = np.cumsum([one.bias.size for one in parts]).tolist()
        self.columns = [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]
        self._parts, self._of_parts = parts, slopes
        fan_in, self.outputs = len(parts[0].weight), ends[-1]
        self.layer, self.slopes = (
            Layer(np.zeros((fan_in, self.outputs), np.float32), np.zeros(self.outputs, np.float32)) for _ in range(2)
        )

    def memory(self, rows: int) -> Floats:
        """Return memory for outputs (rows, out), or gradients by them."""
        if self.outputs <= FEW:
            return np.zeros((self.outputs, rows), np.float32).T
        return np.zeros((rows, self.outputs), np.float32)

    def refresh(self) -> None:
        """Take the weights of the layers as they are now."""
        np.concatenate([one.weight for one in self._parts], axis=1, out=self.layer.weight)
        np.concatenate([one.bias for one in self._parts], out=self.layer.bias)

    def deal(self, *, fresh: bool) -> None:
        """Add the gradients to those of the layers, or overwrite these."""
        for one, columns in zip(self._of_parts, self.columns, strict=True):
            if fresh:
                one.weight[...], one.bias[...] = self.slopes.weight[:, columns], self.slopes.bias[columns]
            else:
                one.weight += self.slopes.weight[:, columns]
                one.bias += self.slopes.bias[columns]


def _add_product(left: NDArray[Any], right: NDArray[Any], into: Floats) -> None:
    into += left @ right
