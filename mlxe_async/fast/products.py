"""Products of matrices, by the library that is faster for their shapes.

torch's library shares a product among the learner's threads. For one or two columns it takes ten times as long as that
of numpy does, which has one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

THIN = 5
"""Inputs or outputs of a layer up to which numpy multiplies faster, however many rows there are."""


def product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    """Return what writes the products of C matrices (C, M, K) and C others (C, K, N) into (C, M, N), at each call."""
    if left.shape[2] == 1:
        return partial(torch.mul, left, right, out=out)
    if min(left.shape[1], right.shape[2]) <= THIN:
        return partial(np.matmul, left.numpy(), right.numpy(), out=out.numpy())
    return partial(torch.bmm, left, right, out=out)


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
