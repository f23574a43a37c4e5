"""A place in shared memory where one worker puts what it exchanges in an update, for the learner to step by.

It holds one push: arrays in their order, each of a kind. The worker writes the next one when the learner has used this
one, so none waits here. A push bears its number, and a checksum of number and bytes: what a worker that was killed
has half written is not taken for a whole one. The memory grows with the largest push.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from struct import Struct
from typing import Any
from zlib import crc32

from numpy.typing import NDArray

from mlxe_async.errors import CorruptRecord
from mlxe_async.fences import fence
from mlxe_async.ipc.shared.checksums import checksum_of
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.words import PAGE_BYTES, WORD_STRIDE, Words

_WORDS = ("number", "table_bytes", "nbytes", "crc")
_HEAD_BYTES = len(_WORDS) * WORD_STRIDE
_SUMMED = Struct("=3Q")
_ALIGNED = 64
LEAST_BYTES = PAGE_BYTES
"""Size of the segment before anything is pushed."""
Entries = Sequence[tuple[str, NDArray[Any]]]


class PushSlot:
    """Both ends of such a place.

    Args:
        segment: made with `grows`, of at least `LEAST_BYTES`, zero when new.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def write(self, number: int, entries: Entries) -> int:
        """Put arrays (N,) here, each of a kind, as the push of a number from 1; returns their bytes.

        Raises:
            ResourceError: there is no memory for so much.
        """
        table = json.dumps([[kind, array.dtype.str, array.size] for kind, array in entries]).encode()
        start = _HEAD_BYTES + _aligned(len(table))
        end = start + sum(_aligned(array.nbytes) for _, array in entries)
        if end > self._segment.size:
            self._segment.grow(end + end // 2, sealed=False)
        words = Words(self._segment.buffer, 0, _WORDS)
        words.set("number", 0)
        fence()
        self._segment.buffer[_HEAD_BYTES : _HEAD_BYTES + len(table)] = table
        at = start
        for _, array in entries:
            self._segment.array(at, array.shape, array.dtype)[...] = array
            at += _aligned(array.nbytes)
        words.set("table_bytes", len(table))
        words.set("nbytes", end - _HEAD_BYTES)
        words.set("crc", self._checksum(number, len(table), end - _HEAD_BYTES))
        fence()
        words.set("number", number)
        words.release()
        return end - _HEAD_BYTES

    def read(self, number: int) -> list[tuple[str, NDArray[Any]]]:
        """The arrays of the push of this number, as views that are valid until the next one is written.

        Raises:
            CorruptRecord: it does not lie here whole.
        """
        if os.fstat(self._segment.fd).st_size != self._segment.size:
            self._segment.grow(0, sealed=False)
        words = Words(self._segment.buffer, 0, _WORDS)
        found, table_bytes, nbytes, crc = (words.get(name) for name in _WORDS)
        words.release()
        room = self._segment.size - _HEAD_BYTES
        if found != number or nbytes > room or crc != self._checksum(number, table_bytes, nbytes):
            raise CorruptRecord(f"push {number}: expected it whole in its memory, got number {found}")
        table = json.loads(bytes(self._segment.buffer[_HEAD_BYTES : _HEAD_BYTES + table_bytes]))
        entries, at = [], _HEAD_BYTES + _aligned(table_bytes)
        for kind, dtype, size in table:
            array = self._segment.array(at, size, dtype)
            entries.append((kind, array))
            at += _aligned(array.nbytes)
        return entries

    def _checksum(self, number: int, table_bytes: int, nbytes: int) -> int:
        head = crc32(_SUMMED.pack(number, table_bytes, nbytes))
        return checksum_of(self._segment.buffer[_HEAD_BYTES : _HEAD_BYTES + nbytes], head)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
