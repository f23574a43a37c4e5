"""The flat vector of weights: made of tensors, and put into them again.

Floats of 32 bits or fewer are one number each; all others are cut into pieces of 16 bits, which numbers of 32 bits hold
exactly. Nothing here imports torch before there are tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlxe_async.networks.flat import Floats
from mlxe_async.rows import Array

_FLOAT32 = np.dtype(np.float32)
MANY = 1 << 16
"""Numbers from which on torch copies those that lie by columns, in a fifth of numpy's time."""


class FlatForm:
    """Makes a flat vector of some tensors, and puts one into them.

    Tensors in main memory are copied as arrays, which is faster than torch is.

    Args:
        tensors: which; none are one number.
        places: of each in the vector.
    """

    def __init__(self, tensors: Sequence[Any], places: Sequence[slice]) -> None:
        self._tensors, self._places = tensors, places[: len(tensors)]
        self._count = places[-1].stop
        self._forms = [(tensor.shape, tensor.dtype) for tensor in tensors]
        self._lies: list[Any] = []
        self._arrays: list[Array | None] = []

    def hold(self) -> bool:
        """Return whether the tensors have the shapes and types that they had."""
        return self._forms == [(tensor.shape, tensor.dtype) for tensor in self._tensors]

    def packed(self) -> Floats:
        """The vector (P,), in memory of its own."""
        flat = np.zeros(self._count, np.float32)
        for tensor, array, place in zip(self._tensors, self._memories(), self._places, strict=True):
            if array is None:
                flat[place] = _packed(tensor)
            elif array.dtype is _FLOAT32:
                copy_into(flat[place].reshape(array.shape), array)
            else:
                flat[place] = _pieces(array)
        return flat

    def load(self, flat: Floats) -> None:
        """Put a vector (P,) of float32 into the tensors; torch does not differentiate meanwhile."""
        for tensor, array, place in zip(self._tensors, self._memories(), self._places, strict=True):
            if array is None:
                import torch

                tensor.copy_(torch.from_numpy(unpacked(flat[place], tensor)))
            elif array.dtype is _FLOAT32:
                copy_into(array, flat[place].reshape(array.shape))
            else:
                array.view(np.uint16)[...] = flat[place]

    def _memories(self) -> list[Array | None]:
        """The memory of each tensor, see `_memory`; found again where some numbers lie elsewhere now."""
        lies = [(tensor.data_ptr(), tensor.stride()) for tensor in self._tensors]
        if lies != self._lies:
            self._lies, self._arrays = lies, [_memory(tensor) for tensor in self._tensors]
        return self._arrays


def copy_into(into: Array, numbers: Array) -> None:
    """Copy an array into another one, which may lie in memory otherwise."""
    is_alike = into.flags.c_contiguous == numbers.flags.c_contiguous
    is_plain = numbers.dtype == into.dtype == _FLOAT32 and (numbers.flags.f_contiguous or numbers.flags.c_contiguous)
    if numbers.size < MANY or is_alike or not is_plain or not numbers.flags.writeable:  # torch takes none read-only
        into[...] = numbers
    else:
        import torch

        if not into.flags.c_contiguous:  # torch goes through a matrix in squares only where it writes by rows
            into, numbers = into.T, numbers.T
        torch.from_numpy(into).copy_(torch.from_numpy(numbers))


def _memory(tensor: Any) -> Array | None:
    """A tensor's memory as an array, in a row if it is of a wider type than float32; None: torch is to copy it."""
    import torch

    from mlxe_async.networks.by_numpy import plain_array

    with torch.no_grad():
        array = plain_array(tensor)
    if array is None or array.dtype == _FLOAT32:
        return array
    is_wide = not is_small_float(tensor) and array.itemsize % 2 == 0 and array.flags.c_contiguous
    return array.reshape(-1) if is_wide else None


def is_small_float(tensor: Any) -> bool:
    """Return whether each number of a tensor is one number of the vector."""
    return bool(tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 4)


def slots(tensor: Any) -> tuple[int, ...]:
    """Shape of a tensor's place in the flat vector.

    Raises:
        ValueError: it has no shape yet.
    """
    if type(tensor).__name__ in ("UninitializedParameter", "UninitializedBuffer"):
        raise ValueError(
            "algorithm.name: build made a lazy module, such as LazyLinear, whose shape is not known before it is used; "
            "expected sizes, as nn.Linear(self.spaces.entries, 64)"
        )
    if is_small_float(tensor):
        return tuple(tensor.shape)
    return (-(-tensor.numel() * tensor.element_size() // 2),)


def _packed(tensor: Any) -> Array:
    array = (tensor.float() if tensor.dtype.itemsize < 4 and is_small_float(tensor) else tensor).numpy(force=True)
    return array.reshape(-1) if array.dtype == _FLOAT32 else _pieces(np.ascontiguousarray(array).reshape(-1))


def _pieces(array: Array) -> Array:
    """Numbers (n,) in pieces of 16 bits; NaN if one is a float that is not finite: such weights are not published."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return np.full(array.nbytes // 2, np.nan, np.float32)
    if array.nbytes % 2:
        return np.frombuffer(array.tobytes() + b"\0", np.uint16)
    return array.view(np.uint16)


def unpacked(numbers: Floats, tensor: Any) -> Array:
    """A tensor's numbers, as its place in the vector holds them."""
    if is_small_float(tensor):
        return numbers.reshape(tensor.shape)
    dtype = tensor.numpy(force=True).dtype
    raw = numbers.astype(np.uint16).tobytes()[: tensor.numel() * tensor.element_size()]
    return np.frombuffer(raw, dtype).reshape(tensor.shape).copy()
