"""Many arrays in one flat vector, and views on them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Parameters = tuple[tuple[str, tuple[int, ...]], ...]


def parameter_count(parameters: Parameters) -> int:
    """Length P of the flat vector that holds `parameters`."""
    return sum(int(np.prod(shape)) for _, shape in parameters)


def unflatten(flat: Any, parameters: Parameters) -> dict[str, Any]:
    """Views on a flat vector, name -> (..., *shape). Takes numpy (..., P) and torch alike; nothing is copied.

    Raises:
        ValueError: the vector's length is not that of `parameters`.
    """
    expected = parameter_count(parameters)
    if flat.shape[-1] != expected:
        raise ValueError(f"flat weights: expected {expected} numbers, got {flat.shape[-1]}")
    result: dict[str, Any] = {}
    start = 0
    for name, shape in parameters:
        stop = start + int(np.prod(shape))
        result[name] = flat[..., start:stop].reshape((*flat.shape[:-1], *shape))
        start = stop
    return result


def flatten(arrays: Mapping[str, NDArray[Any]], parameters: Parameters) -> Floats:
    """The inverse of `unflatten`: one float32 vector (P,) out of named arrays, copied."""
    return np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name, _ in parameters])
