"""Outputs and gradients of a dense network by numpy and torch, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mlxe_async.fast.products import THIN, by_torch
from mlxe_async.networks import Floats
from mlxe_async.networks.dense import LAYER_NORM_EPSILON

LARGE = 1 << 14
"""Numbers from which on torch is the faster one, although a call of it takes a microsecond longer than one of numpy."""
MANY = 512
"""The same of rows, where a bias is added to each: numpy takes as long for a short row as for a long one."""


class NumpyGradients:
    """Outputs and gradients of a network for thousands of rows at once: what torch gives, in half the time.

    torch writes each layer's result into fresh memory, thousands of rows at a time, and reads it back from there for
    the next; here a block of rows goes through all layers while it is in the cache, and the memory is kept for the next
    call. `tanh` costs its true price. Only what is not the network, the loss, is left to differentiate to autograd::

        outputs = gradients.forward(observations)  # per head (N, outputs): the leaves of a loss
        gradients.backward({head: gradient_of_the_loss_by_its_outputs, ...})

    Args:
        heads: modules of `networks.dense.Dense` on the CPU. Their parameters are read, and gradients added to, where
            torch has them. Heads of one layer each on common ones take one product together.
        common: layers that they share.
    """

    BLOCK = 1024

    def __init__(self, heads: Mapping[str, Any], common: Any = ()) -> None:
        chains = {"common": [*common], **{name: [*module] for name, module in heads.items()}}
        layers = {name: [one for one in chain if isinstance(one, nn.Linear)] for name, chain in chains.items()}
        kinds = {type(one) for chain in chains.values() for one in chain}
        self.heads, first = tuple(heads), (layers["common"] or next(layers[name] for name in heads))[0]
        self.inputs, self.common = int(first.weight.shape[1]), len(layers["common"])
        self.tanh, self.layer_norm = nn.Tanh in kinds, nn.LayerNorm in kinds
        learns = first.weight.grad is not None  # targets only say outputs
        self._layers = {name: [_Layer.of(one, learns=learns) for one in chain] for name, chain in layers.items()}
        lasts = [self._layers[name] for name in heads]
        are_short = bool(self.common) and len(lasts) > 1 and all(len(one) == 1 for one in lasts)
        self._joint = _Joint([one for (one,) in lasts]) if are_short else None
        self._rows = -1

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, outputs) of each head for flattened observations (N, O); valid until the next call.

        Args:
            observation: what `backward` will tell of.
            ungraded: further ones, whose outputs follow after the others.
        """
        graded, rows = len(observation), len(observation) + (0 if ungraded is None else len(ungraded))
        self._provide(rows)
        self._input[:graded] = observation
        if ungraded is not None:
            self._input[graded:rows] = ungraded
        if self._joint is not None:
            self._joint.refresh()
        for here in self._blocks(rows):
            self._evaluate(here, self.heads)
        return {head: self._activities[head][-1][:rows] for head in self.heads}

    def outputs(self, observation: NDArray[Any], heads: Sequence[str]) -> list[Floats]:
        """Outputs (N, outputs) of some heads in memory of their own, of which nothing is kept for `backward`."""
        rows, blocks = len(observation), self._blocks(len(observation))
        self._provide(max((block.stop - block.start for block in blocks), default=0))
        found = [np.empty((rows, self._layers[head][-1].bias.size), np.float32) for head in heads]
        for block in blocks:
            here = slice(0, block.stop - block.start)
            self._input[here] = observation[block]
            self._evaluate(here, heads)
            for output, head in zip(found, heads, strict=True):
                output[block] = self._activities[head][-1][here]
        return found

    def _evaluate(self, here: slice, heads: Iterable[str]) -> None:
        """The activities of these rows, from the input on."""
        trunk = self._input[here]
        for number in range(self.common):
            trunk = self._hidden("common", number, trunk, here)
        if self._joint is not None and heads is self.heads:
            self._joint.apply(trunk, self._side_by_side[here])
            return
        for head in heads:
            x, last = trunk, len(self._layers[head]) - 1
            for number in range(last):
                x = self._hidden(head, number, x, here)
            self._layers[head][last].apply(x, self._activities[head][last][here])

    def _hidden(self, chain: str, number: int, x: Floats, here: slice) -> Floats:
        """The activity of a hidden layer for its input."""
        layer, activity = self._layers[chain][number], self._activities[chain][number][here]
        if self.layer_norm:
            normed, inverse = self._normed[chain][number][here], self._inverse[chain][number][here]
            layer.apply(x, normed)
            normed -= _mean(normed)[:, None]
            np.divide(1, np.sqrt(_mean_product(normed, normed) + np.float32(LAYER_NORM_EPSILON)), out=inverse)
            normed *= inverse[:, None]
        else:
            normed = layer.apply(x, activity)
        if self.tanh:
            return np.tanh(normed, out=activity)
        if activity.size < LARGE or normed is not activity:
            return np.maximum(normed, 0, out=activity)
        torch.from_numpy(activity).clamp_min_(0)
        return activity

    def backward(self, gradients: Mapping[str, NDArray[Any]], *, fresh: bool = False) -> None:
        """Add to the gradient what follows from the loss's gradients by each head's outputs (M, outputs).

        `fresh`: the gradient is overwritten instead.
        M may be less than the N rows of the last `forward`: nothing flows back into the others.
        """
        if fresh:
            for layer in itertools.chain.from_iterable(self._layers.values()):
                layer.clear()
        rows, joint = len(next(iter(gradients.values()))), self._joint
        together = None if joint is None else joint.side_by_side([gradients.get(head) for head in self.heads])
        for here in self._blocks(rows):
            trunk = self._activities["common"][-1][here] if self.common else self._input[here]
            below: NDArray[Any] | None = None
            if joint is not None and together is not None:
                below = joint.back(trunk, together[here], further=True)
            else:
                for head, gradient in gradients.items():
                    reached = self._through(head, trunk, gradient[here], here, further=bool(self.common))
                    below = reached if below is None or reached is None else np.add(below, reached, out=below)
            if below is not None:
                self._damp("common", self.common - 1, below, here)
                self._through("common", self._input[here], below, here, further=False)

    def _through(
        self, chain: str, given: NDArray[Any], gradient: NDArray[Any], here: slice, *, further: bool
    ) -> NDArray[Any] | None:
        """Go back through a chain that was `given` its input; its input's gradient, if it goes on from there."""
        layers, reached = self._layers[chain], None
        for number in reversed(range(len(layers))):
            x = self._activities[chain][number - 1][here] if number else given
            reached = layers[number].back(x, gradient, further=bool(number) or further)
            if number and reached is not None:
                gradient = reached
                self._damp(chain, number - 1, gradient, here)
        return reached

    def _damp(self, chain: str, number: int, gradient: NDArray[Any], here: slice) -> None:
        """From a hidden layer's activity back to what its weights and bias made, in place.

        Times the slope of the activation: 1 - tanh^2, or where relu let something through. Behind a normalised layer
        x = c / sqrt(mean c^2 + eps), c = z - mean z, follows dz = (dx - mean dx - x mean(x dx)) / sqrt(...).
        """
        self._slope(self._activities[chain][number][here], gradient)
        if self.layer_norm:
            normed, inverse = self._normed[chain][number][here], self._inverse[chain][number][here]
            along = _mean_product(normed, gradient)
            gradient -= _mean(gradient)[:, None]
            gradient -= normed * along[:, None]
            gradient *= inverse[:, None]

    def _slope(self, activity: Floats, gradient: NDArray[Any]) -> None:
        """Times the slope of the activation that gave this activity, in place."""
        if gradient.size < LARGE:
            gradient *= 1 - np.square(activity) if self.tanh else activity > 0
            return
        into, known = torch.from_numpy(gradient), torch.from_numpy(activity)
        if self.tanh:
            torch.ops.aten.tanh_backward.grad_input(into, known, grad_input=into)
        else:
            torch.ops.aten.threshold_backward.grad_input(into, known, 0, grad_input=into)

    def _blocks(self, rows: int) -> list[slice]:
        """Rows in blocks; a last one of less than half the size belongs to the one before it."""
        count = max(1, (rows + self.BLOCK // 2) // self.BLOCK) if rows else 0
        ends = [*range(self.BLOCK, self.BLOCK * count, self.BLOCK), rows][:count]
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def _provide(self, rows: int) -> None:
        if rows <= self._rows:
            return
        self._rows = rows

        def arrays(hidden_only: bool, *, wide: bool = True) -> dict[str, list[Floats]]:
            return {
                chain: [
                    np.zeros((rows, one.bias.size) if wide else rows, np.float32)
                    for one in layers[: len(layers) - (hidden_only and chain != "common")]
                ]
                for chain, layers in self._layers.items()
            }

        self._input = np.zeros((rows, self.inputs), np.float32)
        self._activities = arrays(hidden_only=False)
        if self._joint is not None:
            self._side_by_side = np.zeros((rows, self._joint.bias.size), np.float32)
            for head, columns in zip(self.heads, self._joint.columns, strict=True):
                self._activities[head] = [self._side_by_side[:, columns]]
        if self.layer_norm:
            self._normed, self._inverse = arrays(hidden_only=True), arrays(hidden_only=True, wide=False)


class _Layer:
    """A linear layer's numbers as arrays and as tensors, which are the same memory.

    Args:
        weight: (in, out).
        bias: (out,).
        slope: the weight's gradient (in, out), which `back` adds to; None: it is not asked for.
        bias_slope: the bias's gradient (out,).
    """

    def __init__(
        self, weight: Floats, bias: Floats, slope: Floats | None = None, bias_slope: Floats | None = None
    ) -> None:
        self.weight, self.bias, self.slope, self.bias_slope = weight, bias, slope, bias_slope
        self._weight, self._bias = torch.from_numpy(weight), torch.from_numpy(bias)
        self._slope = None if slope is None else torch.from_numpy(slope)
        self._ones, self._reached = np.zeros(0, np.float32), np.zeros((0, len(weight)), np.float32)

    @classmethod
    def of(cls, layer: nn.Linear, *, learns: bool) -> _Layer:
        """A layer of torch, whose numbers stay where they are."""
        slopes = (layer.weight.grad, layer.bias.grad) if learns else (None, None)
        slope, bias_slope = (None if one is None else one.numpy() for one in slopes)
        return cls(layer.weight.data.numpy().T, layer.bias.data.numpy(), None if slope is None else slope.T, bias_slope)

    def clear(self) -> None:
        """Begin new gradients."""
        for one in (self.slope, self.bias_slope):
            if one is not None:
                one.fill(0)

    def apply(self, x: NDArray[Any], out: Floats) -> Floats:
        """Write the outputs (N, out) for inputs (N, in), and return them."""
        is_small = out.size < LARGE and len(out) < MANY
        if by_torch(auto=not is_small and min(self.weight.shape) > THIN):
            torch.mm(torch.from_numpy(x), self._weight, out=torch.from_numpy(out))
        else:
            np.matmul(x, self.weight, out=out)
        if is_small:
            out += self.bias
        else:
            torch.from_numpy(out).add_(self._bias)
        return out

    def back(self, x: NDArray[Any], gradient: NDArray[Any], *, further: bool) -> NDArray[Any] | None:
        """Add to the gradients what follows from that by the outputs (N, out) for inputs x (N, in).

        Returns:
            The gradient by the inputs (N, in), if it is to go `further`; valid until the next call.
        """
        assert self.slope is not None and self.bias_slope is not None and self._slope is not None  # noqa: S101, PT018 - for the type checker
        if by_torch(auto=len(gradient) * min(self.weight.shape) >= LARGE):
            self._slope.addmm_(torch.from_numpy(x).T, torch.from_numpy(gradient))
        elif self.slope.flags.c_contiguous:
            self.slope += x.T @ gradient
        else:  # torch's own layers have outputs first
            self.slope.T[...] += gradient.T @ x
        if len(self._ones) < len(gradient):
            self._ones = np.ones(len(gradient), np.float32)
        self.bias_slope += self._ones[: len(gradient)] @ gradient  # three times as fast as a sum
        return self._spread(gradient) if further else None

    def _spread(self, gradient: NDArray[Any]) -> NDArray[Any]:
        """The gradient by the inputs (N, in), given that by the outputs (N, out)."""
        weight, is_small = self.weight, len(gradient) * len(self.weight) < LARGE
        if is_small and weight.shape[1] == 1:
            return np.asarray(gradient * weight[:, 0])  # BLAS takes as long for one column as for sixty
        if len(self._reached) < len(gradient):  # fresh memory of a large one costs more than the product
            self._reached = np.empty((len(gradient), len(weight)), np.float32)
        reached = self._reached[: len(gradient)]
        if weight.shape[1] == 1 or by_torch(auto=not is_small):
            known, into = torch.from_numpy(np.ascontiguousarray(gradient)), torch.from_numpy(reached)
            if weight.shape[1] == 1:
                torch.mul(known, self._weight[:, 0], out=into)
            else:
                torch.mm(known, self._weight.T, out=into)
        else:
            np.matmul(gradient, weight.T, out=reached)
        return reached


class _Joint(_Layer):
    """Layers of the same inputs, with their outputs side by side.

    Args:
        parts: the layers.
    """

    def __init__(self, parts: Sequence[_Layer]) -> None:
        ends = np.cumsum([one.bias.size for one in parts]).tolist()
        self.parts, self.columns = parts, [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]
        sizes = (len(parts[0].weight), ends[-1]), (ends[-1],)
        super().__init__(*(np.zeros(size, np.float32) for size in (*sizes, *sizes)))

    def refresh(self) -> None:
        """Take the weights of the layers as they are now."""
        np.concatenate([one.weight for one in self.parts], axis=1, out=self.weight)
        np.concatenate([one.bias for one in self.parts], out=self.bias)

    def side_by_side(self, gradients: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
        """The gradients by the outputs of all layers (N, out); None where one is not known."""
        known = [one for one in gradients if one is not None]
        return np.concatenate(known, axis=1) if len(known) == len(gradients) else None

    def back(self, x: NDArray[Any], gradient: NDArray[Any], *, further: bool) -> NDArray[Any] | None:
        """See `_Layer.back`: the layers' own gradients are added to."""
        assert self.slope is not None and self.bias_slope is not None  # noqa: S101, PT018 - for the type checker
        self.slope[...], self.bias_slope[...] = 0, 0
        found = super().back(x, gradient, further=further)
        for one, columns in zip(self.parts, self.columns, strict=True):
            if one.slope is not None and one.bias_slope is not None:
                one.slope += self.slope[:, columns]
                one.bias_slope += self.bias_slope[columns]
        return found


def _mean(x: Floats) -> Floats:
    """Of each row (N,); by a product, which is faster than a sum over short rows."""
    return np.asarray(x @ np.full(x.shape[1], 1 / x.shape[1], np.float32))


def _mean_product(x: Floats, y: NDArray[Any]) -> Floats:
    """Mean of the products of each row (N,)."""
    return _mean(np.multiply(x, y))
