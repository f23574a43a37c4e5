"""Observations of several parts in one array: how they are laid out, taken apart and joined; numpy and torch alike.

An array of floats holds its parts one after the other. Where a part is a picture of bytes the whole array is bytes: the
floats of all other parts come first, as they lie in memory, then the pictures, up to a multiple of four bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FLOATS, BYTES = "<f4", "|u1"
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Part:
    """One part of an observation.

    Args:
        name: keys and indexes that lead to it, joined by dots: `image`, `pos.x`, `0`.
        shape: its own shape; `()` for one number.
        dtype: `"<f4"` or `"|u1"`.
        offset: where it begins: in entries of an array of floats, in bytes of an array of bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def size(self) -> int:
        """Its entries."""
        return math.prod(self.shape)


def laid_out(leaves: Iterable[tuple[str, tuple[int, ...], str]]) -> tuple[Part, ...]:
    """The parts for names, shapes and dtypes: floats before bytes, else in the order that is given."""
    ordered = sorted(leaves, key=lambda leaf: leaf[2] == BYTES)
    width = FLOAT_BYTES if any(dtype == BYTES for _, _, dtype in ordered) else 1
    parts: list[Part] = []
    offset = 0
    for name, shape, dtype in ordered:
        parts.append(Part(name, shape, dtype, offset))
        offset += math.prod(shape) * (1 if dtype == BYTES else width)
    return tuple(parts)


def stored_as(parts: Sequence[Part]) -> tuple[tuple[int], str]:
    """Shape and dtype of the array that holds all parts."""
    floats, pictures = counted(parts)
    if not any(part.dtype == BYTES for part in parts):
        return (floats,), FLOATS
    return (FLOAT_BYTES * floats + -(-pictures // FLOAT_BYTES) * FLOAT_BYTES,), BYTES


def counted(parts: Iterable[Part]) -> tuple[int, int]:
    """Return how many entries are floats, and how many are bytes."""
    sizes = {FLOATS: 0, BYTES: 0}
    for part in parts:
        sizes[part.dtype] += part.size
    return sizes[FLOATS], sizes[BYTES]


def view(part: Part, obs: Any, *, is_bytes: bool) -> Any:
    """One part (..., *shape) of arrays or tensors (..., N); a view, unless the floats of bytes do not lie in order."""
    size = part.size
    if is_bytes and part.dtype == FLOATS:
        flat = as_floats(obs[..., part.offset : part.offset + FLOAT_BYTES * size])
    else:
        flat = obs[..., part.offset : part.offset + size]
    return flat.reshape((*obs.shape[:-1], *part.shape))


def as_floats(raw: Any) -> Any:
    """Bytes (..., 4 n) as the floats (..., n) that they are."""
    if isinstance(raw, np.ndarray):
        in_order = raw.ndim and (raw.strides[-1] == 1 or not raw.size)
        return (raw if in_order else np.ascontiguousarray(raw)).view(FLOATS)
    import torch

    steps = raw.stride()
    if steps[-1] != 1 or raw.storage_offset() % FLOAT_BYTES or any(step % FLOAT_BYTES for step in steps[:-1]):
        raw = raw.clone(memory_format=torch.contiguous_format)
    return raw.view(torch.float32)


def joined(obs: Any, floats: int, pictures: int) -> Any:
    """Arrays or tensors of bytes (..., N) as floats (..., floats + pictures): all parts one after the other."""
    first = FLOAT_BYTES * floats
    numbers, pixels = as_floats(obs[..., :first]), obs[..., first : first + pictures]
    if not isinstance(obs, np.ndarray):
        import torch

        return torch.cat([numbers, pixels.to(torch.float32)], -1)
    whole = np.empty((*obs.shape[:-1], floats + pictures), np.float32)
    whole[..., :floats], whole[..., floats:] = numbers, pixels
    return whole


def packed(parts: Sequence[Part], named: Mapping[str, Any]) -> Array:
    """Arrays (..., *shape) by name in one array (..., N), a fresh one.

    Raises:
        ValueError: a name is missing or unknown, or a part has another shape.
    """
    names = [part.name for part in parts]
    if set(named) != set(names):
        raise ValueError(f"packing an observation: expected {', '.join(names)}, got {', '.join(named) or 'nothing'}")
    (length,), dtype = stored_as(parts)
    arrays = {name: np.asarray(array) for name, array in named.items()}
    first = parts[0]
    lead = arrays[first.name].shape[: arrays[first.name].ndim - len(first.shape)]
    whole = np.zeros((*lead, length), dtype)
    for part in parts:
        array = arrays[part.name]
        if array.shape != (*lead, *part.shape):
            wanted = (*lead, *part.shape)
            raise ValueError(f"packing an observation: expected {part.name} of shape {wanted}, got {array.shape}")
        view(part, whole, is_bytes=dtype == BYTES)[...] = array
    return whole
