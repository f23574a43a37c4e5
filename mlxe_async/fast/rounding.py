"""Computing again by numbers that differ by a few units of their last place, as rounding could have made them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from mlxe_async.fast.quick import weights_of

UNITS = {"float32": 2.0**-20, "tf32": 2.0**-10, "bfloat16": 2.0**-7}
"""By how much weights are changed, of their size."""
OF_OUTPUTS = 0.25
"""By how much the outputs of layers are, of that."""


@contextlib.contextmanager
def rounded_otherwise(algorithm: Any, precision: str, rng: np.random.Generator) -> Iterator[None]:
    """Change an algorithm's weights, and inside the outputs of each of its layers, each number by itself.

    Other weights change the values of all rows alike, and an advantage, their difference, hardly at all; sums that are
    made in another order change each row's value by itself. The weights stay as they are then.
    """
    import torch
    from torch import nn

    unit = UNITS[precision]
    with torch.no_grad():
        for weights in weights_of(algorithm):
            factor = 1 + unit * rng.standard_normal(tuple(weights.shape))
            weights.mul_(torch.as_tensor(factor, dtype=torch.float32, device=weights.device))

    def change(_layer: nn.Module, _given: Any, found: Any) -> Any:
        if not isinstance(found, torch.Tensor):
            return None
        factor = 1 + OF_OUTPUTS * unit * rng.standard_normal(tuple(found.shape), np.float32)
        return found * torch.from_numpy(factor).to(found)

    parts = [part for one in vars(algorithm).values() if isinstance(one, nn.Module) for part in one.modules()]
    layers = [one for one in parts if any(True for _ in one.parameters(recurse=False))]
    hooks = [one.register_forward_hook(change) for one in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
