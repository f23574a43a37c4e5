"""Several versions of a network evaluated by numpy as one: a product for all of them instead of one for each.

Layers must be settled, see `by_numpy`: nothing is attached to them, and their weights are read here once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mlxe_async.networks.by_numpy import KINDS, Step, Steps, memory
from mlxe_async.networks.noisy import NoisyLinear
from mlxe_async.rows import Array

_OF_COLUMNS = (nn.Linear, NoisyLinear)
_OF_ROWS = (nn.LayerNorm, nn.Tanh, nn.ReLU, nn.ELU, nn.Sigmoid, nn.Identity)  # each row by itself


def settled_as_one(versions: Sequence[Sequence[Any]], tensors: Iterable[torch.Tensor]) -> bool:
    """Have the first version's layers act by all versions, on arrays (V, ..., n), until they are settled anew.

    Args:
        versions: the settled layers of each.
        tensors: all that they act by; where some are of none of those layers, versions are asked one by one.

    Returns:
        whether they can; if not, nothing changes.
    """
    known = {id(tensor) for layer in versions[0] for of in (layer.parameters(), layer.buffers()) for tensor in of}
    if not known.issuperset(map(id, tensors)) or not all(hasattr(type(one), "settle_as") for one in versions[0]):
        return False
    ways = [layers[0].settle_as(layers) for layers in zip(*versions, strict=True)]
    if ways and all(ways):
        return True
    for layer in versions[0]:
        layer.unsettle()
        layer.settle()
    return False


def together(networks: Sequence[Steps]) -> Steps | None:
    """Return the settled steps of several networks of the same layers, each on inputs of its own: (V, ..., inputs).

    None: there is a layer that cannot be evaluated so. Layers under noise are evaluated without it.
    """
    steps, own = list[Step](), False
    with torch.inference_mode():
        for layers in zip(*(one._modules for one in networks), strict=True):
            kind = KINDS.get(type(layers[0]), KINDS[nn.Sequential])
            if kind.made is None:
                continue
            step = _linears(layers) if type(layers[0]) in _OF_COLUMNS else None
            if type(layers[0]) in _OF_ROWS and not any(one is not None for one in layers[0]._parameters.values()):
                step = kind.made(layers[0], own)
            if step is None:
                return None
            steps.append(step)
            own = own or kind.is_new
    found = copy.copy(networks[0])
    found.steps, found.is_settled, found.is_of_several = steps, True, True
    return found


def _linears(layers: Sequence[Any]) -> Step | None:
    """A step of layers that lie at one place in several networks; None: their numbers are not plain ones."""
    weights, biases = ([getattr(one, name) for one in layers] for name in ("weight", "bias"))
    arrays = [memory(one) for one in (*weights, *biases) if one is not None]
    plain = [one for one in arrays if one is not None]
    if len(plain) < len(arrays) or len(plain) not in (len(layers), 2 * len(layers)):
        return None
    columns, shifts = np.stack([one.T for one in plain[: len(layers)]]), plain[len(layers) :]
    added = np.stack(shifts)[:, None] if shifts else None

    def step(x: Array) -> Array:
        y: Array = np.matmul(x, columns)
        if added is not None:
            y += added
        return y

    return step
