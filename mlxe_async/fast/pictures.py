"""Outputs and gradients of a network of pictures, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.networks import Floats

if TYPE_CHECKING:
    import torch

Evaluated = Callable[["torch.Tensor", tuple[str, ...]], Sequence["torch.Tensor"]]
"""Outputs (M, n) of the named heads for what the network is shown (M, ...)."""


class PictureGradients:
    """Outputs and gradients for many pictures, a block of rows at a time; the verbs of `NumpyGradients`.

    What a block leaves between its layers stays in the memory that the last one gave back: for all rows together torch
    would ask the system for fresh pages each time, which costs as much as half of the arithmetic.

    Args:
        evaluated: the network; `backward` adds to the gradients of its parameters.
        heads: name -> how many outputs it has.
    """

    BLOCK = 256

    def __init__(self, evaluated: Evaluated, heads: Mapping[str, int]) -> None:
        self._evaluated, self.heads = evaluated, dict(heads)
        self._outputs: list[tuple[torch.Tensor, ...]] = []

    def forward(self, observation: NDArray[Any], ungraded: NDArray[Any] | None = None) -> dict[str, Floats]:
        """Outputs (N, outputs) of each head for observations (N, ...).

        Args:
            observation: what `backward` will tell of.
            ungraded: further ones, whose outputs follow after the others.
        """
        import torch

        heads = tuple(self.heads)
        self._outputs = [tuple(self._evaluated(seen, heads)) for seen in self._blocks(observation)]
        outputs = list(self._outputs)
        if ungraded is not None and len(ungraded):
            with torch.no_grad():
                outputs += [tuple(self._evaluated(seen, heads)) for seen in self._blocks(ungraded)]
        parts = zip(heads, zip(*outputs, strict=True), strict=True)
        return {head: torch.cat(part).detach().numpy() for head, part in parts}

    def outputs(self, observation: NDArray[Any], heads: Sequence[str]) -> list[Floats]:
        """Outputs (N, outputs) of some heads, of which nothing is kept for `backward`."""
        import torch

        with torch.no_grad():
            found = [self._evaluated(seen, tuple(heads)) for seen in self._blocks(observation)]
        if not found:
            return [np.empty((0, self.heads[head]), np.float32) for head in heads]
        return [torch.cat(part).numpy() for part in zip(*found, strict=True)]

    def _blocks(self, observation: NDArray[Any]) -> Iterator[torch.Tensor]:
        import torch

        for start in range(0, len(observation), self.BLOCK):
            yield torch.from_numpy(observation[start : start + self.BLOCK])

    def backward(self, gradients: Mapping[str, NDArray[Any]]) -> None:
        """Add to the network's gradient what follows from the loss's gradients by each head's outputs (M, outputs)."""
        import torch

        done = 0
        while self._outputs:
            found = self._outputs.pop(0)
            here = slice(done, done + len(found[0]))
            torch.autograd.backward(
                found, [torch.from_numpy(np.ascontiguousarray(gradients[head][here])) for head in self.heads]
            )
            done = here.stop
