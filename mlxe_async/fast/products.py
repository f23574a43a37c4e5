"""Products of matrices by numpy or by torch, whichever is faster for their shapes.

torch's library shares a product among the learner's threads, and numpy's has one. With one thread they are equally fast
on large products, but for one or two columns that of torch takes ten times as long. On a processor of AMD with AVX-512
it is slower on all of them, for it is Intel's: there numpy multiplies alone, unless there are threads to share with. On
AMD's older ones it is not, and numpy's takes up to 3.5 times as long for matrices of about 256 a side. So the choice
follows from shapes, threads and the processor: no time is measured, and a learner that takes over from another chooses
alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

Library = Literal["auto", "numpy", "torch"]
THIN = 5
"""Inputs or outputs of a layer up to which numpy multiplies faster, however many rows there are."""

_library: Library = "auto"
_is_shared = True  # between both libraries, by shapes
_is_asked = False  # nothing was multiplied here yet; convolutions are torch's


def multiply_by(library: Library) -> None:
    """Have this process multiply by one library; `"auto"`: by the faster one for each shape."""
    global _library, _is_shared, _is_asked
    _library, _is_shared, _is_asked = library, torch.get_num_threads() > 1 or not is_numpy_faster(), False


@functools.cache
def is_numpy_faster() -> bool:
    """Return whether torch multiplies by Intel's library on a processor of AMD with AVX-512."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            told = file.read(4096)
    except OSError:  # not everywhere may it be read
        return False
    return torch.backends.mkl.is_available() and "AuthenticAMD" in told and "avx512f" in told


def by_torch(*, auto: bool) -> bool:
    """Return whether a product is torch's; `auto`: whether that is faster for its shape."""
    global _is_asked
    _is_asked = True
    return auto and _is_shared if _library == "auto" else _library == "torch"


def told() -> str:
    """Return which library multiplies, in words; "" where none was asked for yet."""
    if not _is_asked:
        return ""
    threads = torch.get_num_threads()
    by = f"torch in {threads} thread{'s' if threads > 1 else ''}"
    if _library == "numpy" or (_library == "auto" and not _is_shared):
        return "numpy in 1 thread"
    return by if _library == "torch" else f"numpy for small and thin ones, else {by}"


def product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    """Return what writes the products of C matrices (C, M, K) and C others (C, K, N) into (C, M, N), at each call."""
    if left.shape[2] == 1:
        return partial(torch.mul, left, right, out=out)
    if by_torch(auto=min(left.shape[1], right.shape[2]) > THIN):
        return partial(torch.bmm, left, right, out=out)
    return partial(np.matmul, left.numpy(), right.numpy(), out=out.numpy())


def sums(left: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    """Return what writes the sums over the rows of C matrices (C, M, N) into (C, 1, N), at each call."""
    if left.shape[2] <= THIN:
        return partial(np.add.reduce, left.numpy(), 1, keepdims=True, out=out.numpy())
    return partial(torch.sum, left, 1, keepdim=True, out=out)


def addition(into: torch.Tensor, row: torch.Tensor) -> Callable[[], object]:
    """Return what adds a row to each of C matrices (C, M, N), in place, at each call."""
    if into.shape[2] <= THIN:
        return partial(np.add, into.numpy(), row.numpy(), out=into.numpy())
    return partial(into.add_, row)
