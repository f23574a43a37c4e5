"""Places in shared memory where one worker puts what it exchanges in an update, for the learner to step by.

Each place holds one push: arrays in their order, each of a kind, and the few rows that the learner needs with them. The
worker is told which place is free. A push bears its number, and a checksum of number and bytes: what a worker that was
killed has half written is not taken for a whole one. The memory grows with the largest push.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mlxe_async.errors import CorruptRecord
from mlxe_async.fences import fence
from mlxe_async.ipc.shared.checksums import checksum_of
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.words import PAGE_BYTES, WORD_STRIDE, Words

_WORDS = ("number", "offset", "room", "table_bytes", "nbytes", "crc")
_HEAD_BYTES = len(_WORDS) * WORD_STRIDE
_SUMMED = Struct("=3Q")
_ALIGNED = 64
Entries = Sequence[tuple[str, NDArray[Any]]]


class Push(NamedTuple):
    """It lies in a place.

    Args:
        entries: arrays (N,) in their order, each of a kind.
        rows: columns by name.
    """

    entries: Entries
    rows: Mapping[str, NDArray[Any]]


def least_bytes(places: int) -> int:
    """Size of the segment before anything is pushed."""
    return -(-places * _HEAD_BYTES // PAGE_BYTES) * PAGE_BYTES


class PushPlaces:
    """Both ends of a worker's places.

    Args:
        segment: made with `grows`, of at least `least_bytes`, zero when new.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def write(self, place: int, number: int, push: Push | tuple[Entries, Mapping[str, NDArray[Any]]]) -> int:
        """Put the push of a number from 1 into a place from 0; returns its bytes.

        Raises:
            ResourceError: there is no memory for so much.
        """
        entries, rows = push
        arrays = [array for _, array in entries] + [*rows.values()]
        named = [[kind, False] for kind, _ in entries] + [[name, True] for name in rows]
        described = [[*name, one.dtype.str, one.shape] for name, one in zip(named, arrays, strict=True)]
        table = json.dumps(described).encode()
        nbytes = _aligned(len(table)) + sum(_aligned(array.nbytes) for array in arrays)
        offset, room = self._region(place, nbytes)
        words = Words(self._segment.buffer, place * _HEAD_BYTES, _WORDS)
        words.set("number", 0)
        fence()
        self._segment.buffer[offset : offset + len(table)] = table
        at = offset + _aligned(len(table))
        for array in arrays:
            self._segment.array(at, array.shape, array.dtype)[...] = array
            at += _aligned(array.nbytes)
        told = {"offset": offset, "room": room, "table_bytes": len(table), "nbytes": nbytes}
        for name, value in told.items():
            words.set(name, value)
        words.set("crc", self._checksum(number, offset, len(table), nbytes))
        fence()
        words.set("number", number)
        words.release()
        return nbytes

    def _region(self, place: int, nbytes: int) -> tuple[int, int]:
        """Offset and bytes of a place's region, a new one if its own is too small."""
        words = Words(self._segment.buffer, place * _HEAD_BYTES, _WORDS)
        offset, room = words.get("offset"), words.get("room")
        words.release()
        if nbytes > room:
            offset, room = self._segment.size, _aligned(nbytes + nbytes // 2)
            self._segment.grow(offset + room, sealed=False)
        return offset, room

    def read(self, place: int, number: int) -> Push:
        """A copy of the push of this number.

        Raises:
            CorruptRecord: it does not lie in this place whole.
        """
        if os.fstat(self._segment.fd).st_size != self._segment.size:
            self._segment.grow(0, sealed=False)
        words = Words(self._segment.buffer, place * _HEAD_BYTES, _WORDS)
        found, offset, _, table_bytes, nbytes, crc = (words.get(name) for name in _WORDS)
        words.release()
        fits = table_bytes <= nbytes <= self._segment.size - offset
        if found != number or not fits or crc != self._checksum(number, offset, table_bytes, nbytes):
            raise CorruptRecord(f"push {number}: expected it whole in its memory, got number {found}")
        entries, rows = [], {}
        at = offset + _aligned(table_bytes)
        for name, is_column, dtype, shape in json.loads(bytes(self._segment.buffer[offset : offset + table_bytes])):
            array = np.array(self._segment.array(at, tuple(shape), dtype))
            if is_column:
                rows[name] = array
            else:
                entries.append((name, array))
            at += _aligned(array.nbytes)
        return Push(entries, rows)

    def _checksum(self, number: int, offset: int, table_bytes: int, nbytes: int) -> int:
        head = crc32(_SUMMED.pack(number, table_bytes, nbytes))
        return checksum_of(self._segment.buffer[offset : offset + nbytes], head)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
