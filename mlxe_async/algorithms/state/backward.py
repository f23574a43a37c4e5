"""Has torch exchange gradients among workers at the end of each `backward`, as its data-parallel modules do.

An update reads as it does for one learner: zero, backward, clip, step. Only what `backward` adds to leaves is
exchanged, before anything reads it; what `torch.autograd.grad` returns is the worker's own.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.maths import together


class ExchangesGradients:
    """Follows all leaves that an algorithm learns."""

    def __init__(self) -> None:
        self._followed: dict[int, tuple[Any, int]] = {}
        self._touched: list[int] = []

    def follow(self, algorithm: Any) -> None:
        """Follow the leaves that are new since the last call, in the order in which the algorithm holds them."""
        torch = sys.modules.get("torch")
        for leaf in [] if torch is None else _leaves(torch, algorithm):
            if id(leaf) not in self._followed:
                self._followed[id(leaf)] = leaf, len(self._followed)
                leaf.register_post_accumulate_grad_hook(self._note)

    def weights(self) -> NDArray[np.float32]:
        """The numbers (P,) of all leaves, in their order: that of a gradient which touches all of them."""
        leaves = [leaf.detach().numpy(force=True).reshape(-1) for leaf, _ in self._followed.values()]
        return np.concatenate(leaves).astype(np.float32)

    def _note(self, leaf: Any) -> None:
        """A leaf's gradient is whole for this `backward`; the first one asks to be called at its end."""
        if not together.are_several():
            return
        if not self._touched:
            sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(self._exchange)
        self._touched.append(id(leaf))

    def _exchange(self) -> None:
        found, self._touched = [self._followed[one] for one in self._touched], []
        gradients = [leaf.grad for leaf, _ in sorted(found, key=lambda one: one[1])]
        kinds = sorted({f"{gradient.layout}, {gradient.dtype}".replace("torch.", "") for gradient in gradients})
        if len(kinds) > 1 or not kinds[0].startswith("strided"):
            raise TypeError(f"exchanging gradients: expected strided ones of one type, got {'; '.join(kinds)}")
        flat = np.concatenate([gradient.numpy(force=True).reshape(-1) for gradient in gradients])
        together.gradient(flat)
        start = 0
        for gradient in gradients:
            stop = start + gradient.numel()
            gradient.copy_(sys.modules["torch"].from_numpy(flat[start:stop]).view(gradient.shape))
            start = stop


def _leaves(torch: Any, algorithm: Any) -> list[Any]:
    """Each leaf that has a gradient, of modules, parameters and optimisers among an algorithm's attributes."""
    found: dict[int, Any] = {}
    for value in algorithm._modules.held():
        if isinstance(value, torch.nn.Module):
            some = [*value.parameters()]
        elif isinstance(value, torch.optim.Optimizer):
            some = [leaf for group in value.param_groups for leaf in group["params"]]
        else:
            some = [value] if isinstance(value, torch.Tensor) else []
        found |= {id(leaf): leaf for leaf in some if leaf.is_leaf and leaf.requires_grad}
    return [*found.values()]
