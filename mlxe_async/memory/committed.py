"""A small vector of counters in shared memory that changes all at once or not at all.

The process that keeps a memory may be killed between any two stores. Its bookkeeping therefore lives in two copies,
each closed by a checksum; a change is written into the older copy, so the newest complete one always says what was last
finished, and a successor repeats at most the one step that was under way.

An onlooker copies one after the other. Where a change ended in the first and one began in the second meanwhile, it saw
neither whole, and looks again; bytes that fail and do not change any more are damage.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlxe_async.errors import CorruptRecord
from mlxe_async.fences import fence
from mlxe_async.rows import Array

LOOKS = 1000
"""Looks at counters that change all the time, until they count as damaged."""
PAUSE_S = 0.0001


class Committed:
    """Two checksummed copies of `words` int64 values.

    Args:
        buffer: writable bytes, at least `offset + Committed.nbytes(words)`.
        offset: where the copies start.
        words: number of values.
        formatted: whether values were stored when the bytes were made; if so, zeros are damage, not a beginning.
    """

    def __init__(self, buffer: Any, offset: int, words: int, *, formatted: bool = False) -> None:
        self._formatted = formatted
        self._copies = np.frombuffer(buffer, dtype="<i8", count=2 * (words + 2), offset=offset).reshape(2, words + 2)

    @staticmethod
    def nbytes(words: int) -> int:
        """Bytes needed for `words` values."""
        return 2 * (words + 2) * 8

    def load(self) -> Array:
        """A private copy of the newest complete values (words,); zeros when nothing was ever stored.

        Raises:
            CorruptRecord: something was stored, or should have been, but neither copy passes its checksum.
        """
        before: list[Array] = []
        for look in range(LOOKS):
            if look:
                time.sleep(PAUSE_S)
                fence()
            copies = self._look()
            whole = [copy for copy in copies if copy[-1] == _checksum(copy)]
            if whole:
                return max(whole, key=lambda copy: int(copy[0]))[1:-1].copy()
            if not self._formatted and not any(copy.any() for copy in copies):
                return np.zeros(self._copies.shape[1] - 2, dtype=np.int64)
            if before and all((then == now).all() for then, now in zip(before, copies, strict=True)):
                break
            before = copies
        raise CorruptRecord("memory bookkeeping: expected one of two copies to pass its checksum, both fail")

    def _look(self) -> list[Array]:
        return [copy.copy() for copy in self._copies]

    def store(self, values: Array) -> None:
        """Replace the values; until the last word is written the previous ones stay in force."""
        first, second = (int(copy[0]) if copy[-1] == _checksum(copy) else 0 for copy in self._copies)
        fence()  # the newer copy is whole for everybody before the older one changes
        older = self._copies[0] if first <= second else self._copies[1]
        older[0] = max(first, second) + 1
        older[1:-1] = values
        older[-1] = _checksum(older)


def format_memory(buffer: Any, words: int) -> None:
    """Make the bytes of a new memory one that is empty and says so: then zeros are never taken for a beginning."""
    Committed(buffer, 0, words).store(np.zeros(words, dtype=np.int64))


def _checksum(copy: Array) -> int:
    # The constant keeps an all-zero copy from being valid.
    return zlib.crc32(copy[:-1].tobytes()) ^ 0x5A5A5A5A


def part_views(buffer: Any, parts: Sequence[tuple[str, int]]) -> dict[str, Array]:
    """Bytes (n,) of each named part of a buffer that holds them one after the other, as views."""
    views, offset = {}, 0
    for name, size in parts:
        views[name] = np.frombuffer(buffer, np.uint8, size, offset)
        offset += size
    return views
