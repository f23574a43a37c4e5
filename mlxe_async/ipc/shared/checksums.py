"""Checksums of shared bytes.

Up to some size CRC-32. Larger bytes are added up first, as words, sixteen strips of a stretch into one, and the CRC is
that of the sums, in a third of the time that a CRC of every byte takes. One changed word always changes a sum, and half
of something older nearly always does; then the CRC misses it once in 2^32 times. What it cannot see are changes that
cancel each other in a sum, such as two strips of a stretch in each other's place: neither death in the middle of a
write nor a flipped bit makes such.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

STRIP_WORDS = 2048  # of eight bytes: the sums stay in the nearest cache
STRIPS = 16
STRETCH_BYTES = 8 * STRIP_WORDS * STRIPS


def checksum_of(data: Any, start: int = 0) -> int:
    """Checksum of a contiguous buffer of bytes, going on from `start`, that of what lies before it."""
    whole = len(data) // STRETCH_BYTES
    if not whole:
        return crc32(data, start)
    words = np.frombuffer(data, np.uint64, whole * STRIPS * STRIP_WORDS).reshape(whole, STRIPS, STRIP_WORDS)
    for stretch in words:
        start = crc32(np.add.reduce(stretch, axis=0).data, start)
    return crc32(data[whole * STRETCH_BYTES :], start)
