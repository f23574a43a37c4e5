"""The gradients that an update has left behind, read where its last step found them. Nothing is changed by that."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mlxe_async.algorithms.state.held import tensors_of
from mlxe_async.optimisers import OfParameters
from mlxe_async.rows import Array


def gradients_of(algorithm: Any) -> dict[str, Array]:
    """The gradient (N,) of each parameter that has one, by its name, such as `actor.0.weight`.

    They are those of the last step, as the optimiser found them: clipped, where the update clips. Empty where the
    update keeps none, as one that clears them after its step, or that of a table.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    named, found = [*_named(torch, vars(algorithm))], dict[str, Array]()
    slopes = _stepped(torch, vars(algorithm).values()) or {id(one): one.grad for _, one in named if one.is_leaf}
    for name, tensor in named:
        slope = slopes.pop(id(tensor), None)  # a parameter may have several names
        if slope is not None and slope.layout == torch.strided:
            found[name] = slope.detach().float().numpy(force=True).reshape(-1)
    return found if any(one.any() for one in found.values()) else {}


def _stepped(torch: Any, held: Iterable[Any]) -> dict[int, Any]:
    """The gradients of all parameters that optimisers step, by the parameter's id.

    An optimiser of this package has them in a vector that twins write into, whatever torch's own `grad` is meanwhile.
    """
    found = dict[int, Any]()
    for one in held:
        if isinstance(one, OfParameters):
            sizes = [parameter.numel() for parameter in one.parameters]
            found |= {id(each): part for each, part in zip(one.parameters, one.gradient.split(sizes), strict=True)}
        elif isinstance(one, torch.optim.Optimizer):
            found |= {id(each): each.grad for group in one.param_groups for each in group["params"]}
        elif isinstance(one, list | tuple):
            found |= _stepped(torch, one)
        elif isinstance(one, dict):
            found |= _stepped(torch, one.values())
    return found


def _named(torch: Any, held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Parameters among attributes, and in the lists and dictionaries among these, with the way to each."""
    for name, value in held.items():
        if isinstance(value, torch.nn.Module):
            yield from ((f"{name}.{key}", tensor) for key, tensor in tensors_of(value))
        elif isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, list | tuple | dict):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            yield from _named(torch, {f"{name}.{key}": one for key, one in parts})
