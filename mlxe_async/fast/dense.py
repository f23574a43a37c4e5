"""Outputs and gradients of a dense network by numpy and torch, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mlxe_async.fast.layers import LARGE, Joint, Layer, Step
from mlxe_async.networks import Floats
from mlxe_async.networks.dense import LAYER_NORM_EPSILON


class NumpyGradients:
    """Outputs and gradients of a network for thousands of rows at once: what torch gives, in half the time.

    torch writes each layer's result into fresh memory, thousands of rows at a time, and reads it back from there for
    the next; here a block of rows goes through all layers while it is in the cache, and the memory is kept for the next
    call. So are the steps for a block of as many rows. `tanh` costs its true price. Only what is not the network, the
    loss, is left to differentiate to autograd::

        outputs = gradients.forward(observations)  # per head (N, outputs): the leaves of a loss
        gradients.backward({head: gradient_of_the_loss_by_its_outputs, ...})

    Args:
        heads: modules of `networks.dense.Dense` on the CPU. Their parameters are read, and gradients added to, where
            torch has them. Heads of one layer each on common ones take one product together.
        common: layers that they share.
    """

    BLOCK = 1024
    WAYS = 64
    """Most ways through the network that are kept; each is of some rows."""

    def __init__(self, heads: Mapping[str, Any], common: Any = ()) -> None:
        chains = {"common": [*common], **{name: [*module] for name, module in heads.items()}}
        linear = {name: [one for one in chain if isinstance(one, nn.Linear)] for name, chain in chains.items()}
        kinds = {type(one) for chain in chains.values() for one in chain}
        self.heads, self.common = tuple(heads), len(linear["common"])
        self.tanh, self.layer_norm = nn.Tanh in kinds, nn.LayerNorm in kinds
        both = {name: [Layer.of(one) for one in chain] for name, chain in linear.items()}
        self._layers = {name: [layer for layer, _ in chain] for name, chain in both.items()}
        self._slopes = {name: [one for _, one in chain if one is not None] for name, chain in both.items()}
        firsts = [self._layers[name][0] for name in (("common",) if self.common else self.heads)]
        self.inputs = len(firsts[0].weight)
        self._ones = int(all(one.whole is not None for one in firsts))  # a column of them beside the inputs
        lasts = [self._layers[name] for name in heads]
        are_short = bool(self.common) and len(lasts) > 1 and all(len(one) == 1 for one in lasts)
        of_heads = [one for name in heads for one in self._slopes[name]]
        self._joint = Joint([one for (one,) in lasts], of_heads) if are_short else None
        self._rows, self._ways = -1, dict[tuple[Any, ...], list[Step]]()

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, outputs) of each head for flattened observations (N, O); valid until the next call.

        Args:
            observation: what `backward` will tell of.
            ungraded: further ones, whose outputs follow after the others.
        """
        graded, rows = len(observation), len(observation) + (0 if ungraded is None else len(ungraded))
        self._provide(rows)
        self._seen[:graded] = observation
        if ungraded is not None:
            self._seen[graded:rows] = ungraded
        if self._joint is not None:
            self._joint.refresh()
        for here in self._blocks(rows):
            self._go(("forward", here.start, here.stop), partial(self._evaluated, here, self.heads))
        return {head: self._activities[head][-1][:rows] for head in self.heads}

    def outputs(self, observation: NDArray[Any], heads: Sequence[str]) -> list[Floats]:
        """Outputs (N, outputs) of some heads in memory of their own, of which nothing is kept for `backward`."""
        rows, blocks, heads = len(observation), self._blocks(len(observation)), tuple(heads)
        self._provide(max((block.stop - block.start for block in blocks), default=0))
        found = [np.empty((rows, self._layers[head][-1].bias.size), np.float32) for head in heads]
        for block in blocks:
            here = slice(0, block.stop - block.start)
            self._seen[here] = observation[block]
            self._go(("outputs", here.stop, heads), partial(self._evaluated, here, heads, is_joint=False))
            for output, head in zip(found, heads, strict=True):
                output[block] = self._activities[head][-1][here]
        return found

    def backward(self, gradients: Mapping[str, NDArray[Any]], *, fresh: bool = False) -> None:
        """Add to the gradient what follows from the loss's gradients by each head's outputs (M, outputs).

        `fresh`: the gradient is overwritten instead.
        M may be less than the N rows of the last `forward`: nothing flows back into the others.
        """
        rows, heads = len(next(iter(gradients.values()))), tuple(gradients)
        blocks, is_joint = self._blocks(rows), self._joint is not None and len(heads) == len(self.heads)
        if fresh and not (blocks and len(heads) == len(self.heads)):
            for one in itertools.chain.from_iterable(self._slopes.values()):
                one.clear()
            fresh = False
        for head, gradient in gradients.items():
            self._given[head][:rows] = gradient
        for number, here in enumerate(blocks):
            begins = fresh and not number
            way = (
                partial(self._joint_back, here, begins, not number)
                if is_joint
                else partial(self._back, here, heads, begins)
            )
            self._go(("back", here.start, here.stop, heads, begins, not number), way)
        if is_joint and blocks and self._joint is not None:
            self._joint.deal(fresh=fresh)

    def _go(self, key: tuple[Any, ...], way: partial[Iterator[Step]]) -> None:
        """Take the steps of a way, which are laid down the first time."""
        steps = self._ways.get(key)
        if steps is None:
            if len(self._ways) >= self.WAYS:
                self._ways.clear()
            steps = self._ways[key] = [*way()]
        for step in steps:
            step()

    # -- forward --

    def _evaluated(self, here: slice, heads: Sequence[str], *, is_joint: bool = True) -> Iterator[Step]:
        """Yield the steps from the input on to the outputs of these rows."""
        trunk = self._input[here]
        for number in range(self.common):
            yield from self._hidden("common", number, trunk, here)
            trunk = self._activities["common"][number][here]
        if is_joint and self._joint is not None:
            yield from self._joint.layer.forward(trunk, self._side_by_side[here])
            return
        for head in heads:
            x, last = trunk, len(self._layers[head]) - 1
            for number in range(last):
                yield from self._hidden(head, number, x, here)
                x = self._activities[head][number][here]
            yield from self._layers[head][last].forward(x, self._activities[head][last][here])

    def _hidden(self, chain: str, number: int, x: Floats, here: slice) -> Iterator[Step]:
        """Yield the steps from its input to the activity of a hidden layer."""
        layer, activity = self._layers[chain][number], self._activities[chain][number][here]
        normed = activity
        if self.layer_norm:
            normed, inverse = self._normed[chain][number][here], self._inverse[chain][number][here]
            yield from layer.forward(x, normed)
            yield partial(_normalise, normed, inverse)
        else:
            yield from layer.forward(x, activity)
        if self.tanh:
            yield partial(np.tanh, normed, activity)
        elif activity.size < LARGE or normed is not activity:
            yield partial(np.maximum, normed, 0, out=activity)
        else:
            yield partial(torch.from_numpy(activity).clamp_min_, 0)

    # -- back --

    def _joint_back(self, here: slice, begins: bool, is_first: bool) -> Iterator[Step]:
        """Yield the steps back from the outputs of all heads together."""
        assert self._joint is not None  # noqa: S101 - for the type checker
        trunk, below = self._activities["common"][-1][here], self._reached["joint"][0][: here.stop - here.start]
        given = self._by_outputs[here]
        yield from self._joint.slopes.slopes(trunk, given, self._column[: len(given)], fresh=is_first)
        yield self._joint.layer.back(given, below)
        yield from self._common_back(below, here, begins)

    def _back(self, here: slice, heads: Sequence[str], begins: bool) -> Iterator[Step]:
        """Yield the steps back from the outputs of some heads, one after the other."""
        trunk = self._activities["common"][-1][here] if self.common else self._input[here]
        below: NDArray[Any] | None = None
        for head in heads:
            given, further = self._given[head][here], bool(self.common)
            yield from self._through(head, trunk, given, here, begins, further=further)
            reached = self._reached[head][0][: here.stop - here.start]
            if below is not None and further:
                yield partial(np.add, below, reached, below)
            below = reached if below is None else below
        if below is not None and self.common:
            yield from self._common_back(below, here, begins)

    def _common_back(self, below: NDArray[Any], here: slice, begins: bool) -> Iterator[Step]:
        yield from self._damped("common", self.common - 1, below, here)
        yield from self._through("common", self._input[here], below, here, begins, further=False)

    def _through(
        self, chain: str, given: Floats, gradient: NDArray[Any], here: slice, begins: bool, *, further: bool
    ) -> Iterator[Step]:
        """Yield the steps back through a chain that was `given` its input; `further`: to the gradient by that one."""
        for number in reversed(range(len(self._layers[chain]))):
            x = self._activities[chain][number - 1][here] if number else given
            yield from self._slopes[chain][number].slopes(x, gradient, self._column[: len(gradient)], fresh=begins)
            if number or further:
                reached = self._reached[chain][number][: len(gradient)]
                yield self._layers[chain][number].back(gradient, reached)
                gradient = reached
            if number:
                yield from self._damped(chain, number - 1, gradient, here)

    def _damped(self, chain: str, number: int, gradient: NDArray[Any], here: slice) -> Iterator[Step]:
        """Yield the steps from a hidden layer's activity back to what its weights and bias made, in place.

        Times the slope of the activation: 1 - tanh^2, or where relu let something through.
        """
        yield self._sloping(self._activities[chain][number][here], gradient)
        if self.layer_norm:
            yield partial(
                _normalise_back, self._normed[chain][number][here], self._inverse[chain][number][here], gradient
            )

    def _sloping(self, activity: Floats, gradient: NDArray[Any]) -> Step:
        """Return what multiplies by the slope of the activation that gave this activity, in place."""
        if gradient.size < LARGE:
            return partial(_slope_of_tanh if self.tanh else _slope_of_relu, activity, gradient)
        into, known = torch.from_numpy(gradient), torch.from_numpy(activity)
        if self.tanh:
            return partial(torch.ops.aten.tanh_backward.grad_input, into, known, grad_input=into)
        return partial(torch.ops.aten.threshold_backward.grad_input, into, known, 0, grad_input=into)

    # -- rows and memory --

    def _blocks(self, rows: int) -> list[slice]:
        """Rows in blocks; a last one of less than half the size belongs to the one before it."""
        count = max(1, (rows + self.BLOCK // 2) // self.BLOCK) if rows else 0
        ends = [*range(self.BLOCK, self.BLOCK * count, self.BLOCK), rows][:count]
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def _provide(self, rows: int) -> None:
        """Have memory for as many rows."""
        if rows <= self._rows:
            return
        self._rows = rows
        self._ways.clear()

        def arrays(hidden_only: bool, *, wide: bool = True) -> dict[str, list[Floats]]:
            return {
                chain: [
                    np.zeros((rows, one.bias.size) if wide else rows, np.float32)
                    for one in layers[: len(layers) - (hidden_only and chain != "common")]
                ]
                for chain, layers in self._layers.items()
            }

        self._input = np.ones((rows, self.inputs + self._ones), np.float32)
        self._seen = self._input[:, : self.inputs]
        self._activities = arrays(hidden_only=False)
        self._given = {head: np.zeros((rows, self._layers[head][-1].bias.size), np.float32) for head in self.heads}
        most = min(rows, self.BLOCK + self.BLOCK // 2)
        self._column = np.ones(most, np.float32)
        self._reached = {
            chain: [np.zeros((most, len(one.weight)), np.float32) for one in layers]
            for chain, layers in self._layers.items()
        }
        if self._joint is not None:
            self._side_by_side, self._by_outputs = self._joint.memory(rows), self._joint.memory(rows)
            self._reached["joint"] = [np.zeros((most, len(self._joint.layer.weight)), np.float32)]
            for head, columns in zip(self.heads, self._joint.columns, strict=True):
                self._activities[head] = [self._side_by_side[:, columns]]
                self._given[head] = self._by_outputs[:, columns]
        if self.layer_norm:
            self._normed, self._inverse = arrays(hidden_only=True), arrays(hidden_only=True, wide=False)


def _slope_of_tanh(activity: Floats, gradient: NDArray[Any]) -> None:
    gradient *= 1 - np.square(activity)


def _slope_of_relu(activity: Floats, gradient: NDArray[Any]) -> None:
    gradient *= activity > 0


def _normalise(normed: Floats, inverse: Floats) -> None:
    """Bring rows (N, n) to mean 0 and deviation 1, in place; `inverse` (N,) becomes 1 over the latter."""
    normed -= _mean(normed)[:, None]
    np.divide(1, np.sqrt(_mean_product(normed, normed) + np.float32(LAYER_NORM_EPSILON)), out=inverse)
    normed *= inverse[:, None]


def _normalise_back(normed: Floats, inverse: Floats, gradient: NDArray[Any]) -> None:
    """Turn a gradient by a normalised layer into that by what went into it, in place.

    x = c / sqrt(mean c^2 + eps), c = z - mean z, so that dz = (dx - mean dx - x mean(x dx)) / sqrt(...).
    """
    along = _mean_product(normed, gradient)
    gradient -= _mean(gradient)[:, None]
    gradient -= normed * along[:, None]
    gradient *= inverse[:, None]


def _mean(x: Floats) -> Floats:
    """Of each row (N,); by a product, which is faster than a sum over short rows."""
    return np.asarray(x @ np.full(x.shape[1], 1 / x.shape[1], np.float32))


def _mean_product(x: Floats, y: NDArray[Any]) -> Floats:
    """Mean of the products of each row (N,)."""
    return _mean(np.multiply(x, y))
