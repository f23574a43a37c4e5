"""Outputs and gradients of a network of pictures, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.networks import Floats

if TYPE_CHECKING:
    import torch

Evaluated = Callable[["torch.Tensor", Sequence[str]], Sequence["torch.Tensor"]]
"""Outputs (M, n) of the named heads for what the network is shown (M, ...)."""


class Network(Protocol):
    """Evaluates and differentiates some rows at once."""

    def outputs(self, obs: torch.Tensor, names: Sequence[str], *, graded: bool) -> tuple[Sequence[torch.Tensor], Any]:
        """Outputs (M, n) of the named heads for pictures (M, ...), and, if it is `graded`, what `backward` takes."""

    def backward(self, kept: Any, gradients: Sequence[torch.Tensor], *, fresh: bool) -> None:
        """Add to the gradients of the weights what follows from those by these outputs (M, n); `fresh`: overwrite."""


class ByAutograd:
    """A network that torch differentiates.

    Args:
        evaluated: the network.
        weights: all that it has, and their gradients.
    """

    def __init__(self, evaluated: Evaluated, weights: Sequence[torch.Tensor]) -> None:
        self._evaluated, self._weights = evaluated, weights

    def outputs(self, obs: torch.Tensor, names: Sequence[str], *, graded: bool) -> tuple[Sequence[torch.Tensor], Any]:
        """See `Network.outputs`."""
        import torch

        with torch.set_grad_enabled(graded):
            found = self._evaluated(obs, names)
        return [one.detach() for one in found], found

    def backward(self, kept: Any, gradients: Sequence[torch.Tensor], *, fresh: bool) -> None:
        """See `Network.backward`."""
        import torch

        if fresh:
            for one in self._weights:
                if one.grad is not None:
                    one.grad.zero_()
        torch.autograd.backward(kept, gradients)


class PictureGradients:
    """Outputs and gradients for many pictures, a block of rows at a time; the verbs of `NumpyGradients`.

    What a block leaves between its layers stays in the memory that the last one gave back: for all rows together torch
    would ask the system for fresh pages each time, which costs as much as half of the arithmetic.

    Args:
        network: what evaluates and differentiates a block.
        heads: name -> how many outputs it has.
    """

    BLOCK = 256

    def __init__(self, network: Network, heads: Mapping[str, int]) -> None:
        self._network, self.heads = network, dict(heads)
        self._kept: list[tuple[int, Any]] = []

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, outputs) of each head for observations (N, ...).

        Args:
            observation: what `backward` will tell of.
            ungraded: further ones, whose outputs follow after the others.
        """
        heads, found = tuple(self.heads), []
        self._kept = []
        for seen in self._blocks(observation):
            outputs, kept = self._network.outputs(seen, heads, graded=True)
            found.append(outputs)
            self._kept.append((len(seen), kept))
        if ungraded is not None:
            found += [self._network.outputs(seen, heads, graded=False)[0] for seen in self._blocks(ungraded)]
        return dict(zip(heads, _joined(found), strict=True))

    def outputs(self, observation: NDArray[Any], heads: Sequence[str]) -> list[Floats]:
        """Outputs (N, outputs) of some heads, of which nothing is kept for `backward`."""
        if not len(observation):
            return [np.empty((0, self.heads[head]), np.float32) for head in heads]
        return _joined([self._network.outputs(seen, heads, graded=False)[0] for seen in self._blocks(observation)])

    def _blocks(self, observation: NDArray[Any]) -> Iterator[torch.Tensor]:
        import torch

        for start in range(0, len(observation), self.BLOCK):
            yield torch.from_numpy(observation[start : start + self.BLOCK])

    def backward(self, gradients: Mapping[str, NDArray[Any]], *, fresh: bool = False) -> None:
        """Add to the network's gradient what follows from the loss's gradients by each head's outputs (M, outputs).

        `fresh`: the gradient is overwritten, by the first block.
        """
        import torch

        done = 0
        while self._kept:
            rows, kept = self._kept.pop(0)
            here = slice(done, done + rows)
            by_outputs = [np.array(gradients[head][here], order="C") for head in self.heads]
            self._network.backward(kept, [torch.from_numpy(one) for one in by_outputs], fresh=fresh and not done)
            done = here.stop


def _joined(blocks: Sequence[Sequence[torch.Tensor]]) -> list[Floats]:
    """Outputs of all blocks, one below the other, by head."""
    import torch

    return [torch.cat(part).numpy() for part in zip(*blocks, strict=True)]
