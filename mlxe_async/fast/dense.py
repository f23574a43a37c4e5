"""Outputs and gradients of a dense network by numpy, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mlxe_async.networks import Floats
from mlxe_async.networks.dense import LAYER_NORM_EPSILON

Chains = dict[str, list[tuple[Floats, Floats]]]
LARGE = 1 << 14
"""Numbers from which on torch is the faster one, although a call of it takes a microsecond longer than one of numpy."""


class NumpyGradients:
    """Outputs and gradients of a network for thousands of rows at once: what torch gives, in half the time.

    torch writes each layer's result into fresh memory, thousands of rows at a time, and reads it back from there for
    the next; here a block of rows goes through all layers while it is in the cache, and the memory is kept for the next
    call. `tanh` costs its true price. Only what is not the network, the loss, is left to differentiate to autograd::

        outputs = gradients.forward(observations)  # per head (N, outputs): the leaves of a loss
        gradients.backward({head: gradient_of_the_loss_by_its_outputs, ...})

    Args:
        heads: modules of `networks.dense.Dense` on the CPU. Their parameters are read, and gradients added to, where
            torch has them.
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
        self._weights: Chains = {name: [_of(layer) for layer in chain] for name, chain in layers.items()}
        learns = first.weight.grad is not None  # targets only say outputs
        self._gradients: Chains = {
            n: [_of(one, "grad") for one in chain] if learns else [] for n, chain in layers.items()
        }
        self._rows, self._ones = -1, np.ones(self.BLOCK, np.float32)

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, outputs) of each head for flattened observations (N, O); valid until the next call.

        Args:
            observation: what `backward` will tell of.
            ungraded: further ones, whose outputs follow after the others.
        """
        if ungraded is not None:
            observation = np.concatenate([observation, ungraded])
        self._provide(len(observation))
        self._input[: len(observation)] = observation
        for here in self._blocks(len(observation)):
            self._evaluate(here, self.heads)
        return {head: self._activities[head][-1][: len(observation)] for head in self.heads}

    def outputs(self, observation: NDArray[Any], heads: Sequence[str]) -> list[Floats]:
        """Outputs (N, outputs) of some heads in memory of their own, of which nothing is kept for `backward`."""
        rows = len(observation)
        self._provide(min(rows, self.BLOCK))
        found = [np.empty((rows, self._weights[head][-1][1].size), np.float32) for head in heads]
        for block in self._blocks(rows):
            here = slice(0, block.stop - block.start)
            self._input[here] = observation[block]
            self._evaluate(here, heads)
            for output, head in zip(found, heads, strict=True):
                output[block] = self._activities[head][-1][here]
        return found

    def _evaluate(self, here: slice, heads: Iterable[str]) -> None:
        """The activities of these rows, from the input on."""
        trunk = self._input[here]
        for number in range(len(self._weights["common"])):
            trunk = self._layer("common", number, trunk, here)
        for head in heads:
            x, last = trunk, len(self._weights[head]) - 1
            for number in range(last):
                x = self._layer(head, number, x, here)
            weight, bias = self._weights[head][last]
            output = np.matmul(x, weight, out=self._activities[head][last][here])
            output += bias

    def _layer(self, chain: str, number: int, x: Floats, here: slice) -> Floats:
        """The activity of a hidden layer for its input."""
        weight, bias = self._weights[chain][number]
        activity = self._activities[chain][number][here]
        if self.layer_norm:
            normed, inverse = self._normed[chain][number][here], self._inverse[chain][number][here]
            np.matmul(x, weight, out=normed)
            normed += bias
            normed -= _mean(normed)[:, None]
            np.divide(1, np.sqrt(_mean_product(normed, normed) + np.float32(LAYER_NORM_EPSILON)), out=inverse)
            normed *= inverse[:, None]
        else:
            normed = np.matmul(x, weight, out=activity)
            if not self.tanh and activity.size >= LARGE:
                torch.from_numpy(normed).add_(torch.from_numpy(bias)).clamp_min_(0)
                return activity
            normed += bias
        if self.tanh:
            return np.tanh(normed, out=activity)
        return np.maximum(normed, 0, out=activity)

    def backward(self, gradients: Mapping[str, NDArray[Any]]) -> None:
        """Add to the gradient what follows from the loss's gradients by each head's outputs (M, outputs).

        M may be less than the N rows of the last `forward`: nothing flows back into the others.
        """
        rows = len(next(iter(gradients.values())))
        for here in self._blocks(rows):
            trunk = self._activities["common"][-1][here] if self.common else self._input[here]
            below: NDArray[Any] | None = None
            for head, gradient in gradients.items():
                reached = self._through(head, trunk, gradient[here], here, further=bool(self.common))
                below = reached if below is None or reached is None else np.add(below, reached, out=below)
            if below is not None:
                self._damp("common", len(self._weights["common"]) - 1, below, here)
                self._through("common", self._input[here], below, here, further=False)

    def _through(
        self, chain: str, given: NDArray[Any], gradient: NDArray[Any], here: slice, *, further: bool
    ) -> NDArray[Any] | None:
        """Go back through a chain that was `given` its input; its input's gradient, if it goes on from there."""
        layers = len(self._weights[chain])
        for number in reversed(range(layers)):
            x = self._activities[chain][number - 1][here] if number else given
            into_weight, into_bias = self._gradients[chain][number]
            if into_weight.flags.c_contiguous:
                into_weight += x.T @ gradient
            else:  # torch's own layers have outputs first
                into_weight.T[...] += gradient.T @ x
            into_bias += self._ones[: len(gradient)] @ gradient  # three times as fast as a sum
            if number or further:
                gradient = _spread(gradient, self._weights[chain][number][0])
            if number:
                self._damp(chain, number - 1, gradient, here)
        return gradient if further else None

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
        if self.tanh:
            slope = np.square(activity)
            np.subtract(1, slope, out=slope)
            gradient *= slope
        elif gradient.size < LARGE:
            gradient *= activity > 0
        else:
            into = torch.from_numpy(gradient)
            torch.ops.aten.threshold_backward.grad_input(into, torch.from_numpy(activity), 0, grad_input=into)

    def _blocks(self, rows: int) -> list[slice]:
        return [slice(start, min(start + self.BLOCK, rows)) for start in range(0, rows, self.BLOCK)]

    def _provide(self, rows: int) -> None:
        if rows <= self._rows:
            return
        self._rows = rows

        def arrays(hidden_only: bool, *, wide: bool = True) -> dict[str, list[Floats]]:
            return {
                chain: [
                    np.zeros((rows, bias.size) if wide else rows, np.float32)
                    for _, bias in layers[: len(layers) - (hidden_only and chain != "common")]
                ]
                for chain, layers in self._weights.items()
            }

        self._input = np.zeros((rows, self.inputs), np.float32)
        self._activities = arrays(hidden_only=False)
        if self.layer_norm:
            self._normed, self._inverse = arrays(hidden_only=True), arrays(hidden_only=True, wide=False)


def _of(layer: nn.Linear, what: str = "data") -> tuple[Floats, Floats]:
    """A linear layer's weight (in, out) and bias, or their gradients, where torch has them."""
    weight, bias = (getattr(one, what).numpy() for one in (layer.weight, layer.bias))
    return weight.T, bias


def _spread(gradient: NDArray[Any], weight: Floats) -> NDArray[Any]:
    """The gradient by a layer's input (N, in), given that by its output (N, out)."""
    if len(gradient) * len(weight) < LARGE:
        # BLAS takes as long for one column as for sixty.
        return np.asarray(gradient * weight[:, 0] if weight.shape[1] == 1 else gradient @ weight.T)
    left, right = torch.from_numpy(np.ascontiguousarray(gradient)), torch.from_numpy(weight)
    return np.asarray((torch.mul(left, right[:, 0]) if weight.shape[1] == 1 else torch.mm(left, right.T)).numpy())


def _mean(x: Floats) -> Floats:
    """Of each row (N,); by a product, which is faster than a sum over short rows."""
    return np.asarray(x @ np.full(x.shape[1], 1 / x.shape[1], np.float32))


def _mean_product(x: Floats, y: NDArray[Any]) -> Floats:
    """Mean of the products of each row (N,)."""
    return _mean(np.multiply(x, y))
