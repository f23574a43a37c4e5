"""Numbers too small for their exponent, which processors take a hundred times as long for, are 0 while one learns.

Moments of an optimiser decay towards 0 where a unit is dead, and then stay at some 1e-39 for hundreds of steps: an Adam
of 200,000 weights was seen to take 7.7 ms instead of 0.2. What counts as 0 is a matter of each thread; a thread that
another one begins does as that one did then, which is how torch's own threads come to it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import numpy as np

_SMALL, _HALF = np.full(1, 1e-38, np.float32), np.float32(0.5)


def are_flushed() -> bool:
    """Return whether this thread takes them for 0."""
    return not (_SMALL * _HALF).view(np.int32)[0]


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Take them for 0 inside, in this thread and in those that it begins; nothing where torch is not loaded."""
    torch, before = sys.modules.get("torch"), are_flushed()
    if torch is None or before or not torch.set_flush_denormal(True):
        yield
        return
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
