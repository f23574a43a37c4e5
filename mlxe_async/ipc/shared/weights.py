"""Published weights: one flat vector, one writer, any number of readers who never make it wait.

Three buffers and one word: version v goes into buffer v % 3, and only then the word `latest` becomes v. A reader that
copies version v is disturbed only when the writer begins v + 3 meanwhile, so torn copies are rare even under a writer
at full duty (with one buffer nearly every try fails then, with two about every third). Rare is not never: each buffer
bears an even number 2v when whole and the odd 2v - 1 while it is written, checked before and after the copy, and there
is a CRC over the copy. A reader acts on a whole version or keeps what it has.
"""

from __future__ import annotations

import math
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mlxe_async.errors import NonFiniteWeights, ProtocolError
from mlxe_async.fences import fence
from mlxe_async.ipc.shared.checksums import checksum_of
from mlxe_async.ipc.shared.segments import STAMP_BYTES, Segment, read_stamp, write_stamp
from mlxe_async.ipc.shared.words import WORD_STRIDE, Words

MAGIC = b"MLXEWGHT"
BUFFERS = 3
TRIES = 3

_HEADER_WORDS = ("sequence", "crc")
_SUMMED = Struct("=2Q")


def weights_bytes(parameters: int) -> int:
    """Bytes of the segment that publishes `parameters` float32 numbers.

    Raises:
        ValueError: `parameters` is not positive.
    """
    return STAMP_BYTES + WORD_STRIDE + BUFFERS * _stride(parameters) + STAMP_BYTES


def format_weights(segment: Segment, parameters: int) -> None:
    """Make a segment ready for weights, with none published: the supervisor's, once.

    Raises:
        ValueError: the segment does not have `weights_bytes(parameters)` bytes.
    """
    if segment.size != (need := weights_bytes(parameters)):
        raise ValueError(f"weights {segment.name}: expected a segment of {need} bytes, got {segment.size}")
    Words(segment.buffer, STAMP_BYTES, ("latest",)).set("latest", 0)
    for buffer in range(BUFFERS):
        header = _header(segment, parameters, buffer)
        for name in _HEADER_WORDS:
            header.set(name, 0)
    write_stamp(segment, MAGIC, parameters)


class _Weights:
    """What writer and readers see alike."""

    def __init__(self, segment: Segment) -> None:
        (self.parameters,) = read_stamp(segment, MAGIC, 1)
        self.name = segment.name
        if self.parameters <= 0 or segment.size != weights_bytes(self.parameters):
            raise ProtocolError(f"weights {self.name}: {segment.size} bytes do not hold {self.parameters} parameters")
        self._latest = Words(segment.buffer, STAMP_BYTES, ("latest",))
        self._headers = [_header(segment, self.parameters, buffer) for buffer in range(BUFFERS)]
        self._blobs = [
            segment.array(_start(self.parameters, buffer) + _header_bytes(), self.parameters, np.float32)
            for buffer in range(BUFFERS)
        ]

    def release(self) -> None:
        """Let go of the shared memory, which else stays mapped as long as this object; nothing can be read any more."""
        for words in (self._latest, *self._headers):
            words.release()
        self._blobs.clear()

    def _check(self, vector: NDArray[np.float32]) -> None:
        if vector.dtype != np.float32 or vector.shape != (self.parameters,) or not vector.flags.c_contiguous:
            raise ValueError(
                f"weights {self.name}: expected a contiguous float32 vector of shape ({self.parameters},), "
                f"got {vector.dtype} {vector.shape}"
            )


class WeightsWriter(_Weights):
    """The one publisher. A restarted one goes on counting where the last one stopped.

    Args:
        segment: formatted by `format_weights`.

    Raises:
        ProtocolError: the segment holds no weights or is damaged.
    """

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.version = self._latest.get("latest")

    def begin_after(self, version: int) -> None:
        """Number what is published first `version` + 1; before anything is published."""
        self.version = version

    def publish(self, vector: NDArray[np.float32]) -> int:
        """Make `vector` (P,) float32 the latest version.

        Returns:
            its version, one more than the last.

        Raises:
            NonFiniteWeights: it holds a NaN or an infinity; nothing was published.
            ValueError: it has another dtype or shape.
        """
        self._check(vector)
        if not all_finite(vector):
            bad = int(np.count_nonzero(~np.isfinite(vector)))
            raise NonFiniteWeights(
                f"weights {self.name}: {bad} of {self.parameters} values are not finite; version {self.version} stays"
            )
        version = self.version + 1
        header, blob = self._headers[version % BUFFERS], self._blobs[version % BUFFERS]
        header.set("sequence", 2 * version - 1)
        fence()
        np.copyto(blob, vector)
        header.set("crc", checksum(version, vector))
        fence()
        header.set("sequence", 2 * version)
        fence()
        self._latest.set("latest", version)
        self.version = version
        return version


class WeightsReader(_Weights):
    """One of many readers.

    Args:
        segment: formatted by `format_weights`.

    Raises:
        ProtocolError: the segment holds no weights or is damaged.
    """

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.retries = 0
        self.stale = 0

    def latest(self) -> int:
        """The latest version, 0 while there is none. One load: cheap enough to ask before every step."""
        return self._latest.get("latest")

    def read(self, into: NDArray[np.float32]) -> int | None:
        """Copy the latest version into `into` (P,) float32.

        Returns:
            the version copied; None when there is none yet, or when the copy was torn each time. Then `stale` has
            counted it, `into` is void, and the reader goes on with the weights it had.

        Raises:
            ValueError: `into` has another dtype or shape.
        """
        self._check(into)
        for _ in range(TRIES):
            version = self._latest.get("latest")
            if version == 0:
                return None
            fence()
            if self._copy(version, into):
                return version
            self.retries += 1
        self.stale += 1
        return None

    def _copy(self, version: int, into: NDArray[np.float32]) -> bool:
        header = self._headers[version % BUFFERS]
        if header.get("sequence") != 2 * version:
            return False
        fence()
        np.copyto(into, self._blobs[version % BUFFERS])
        crc = header.get("crc")
        fence()
        return header.get("sequence") == 2 * version and checksum(version, into) == crc


def all_finite(vector: NDArray[np.float32]) -> bool:
    """Return whether no value of `vector` (P,) is NaN or infinite.

    A sum is cheaper than a test of each value and is never finite when a value is not; that it may also overflow
    without one is what the second look is for.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(vector.sum()) or bool(np.isfinite(vector).all())


def checksum(version: int, vector: NDArray[Any]) -> int:
    """Checksum over version, size and bytes of a vector (P,)."""
    return checksum_of(vector.data.cast("B"), crc32(_SUMMED.pack(version, vector.nbytes)))


def _header_bytes() -> int:
    return len(_HEADER_WORDS) * WORD_STRIDE


def _stride(parameters: int) -> int:
    if parameters <= 0:
        raise ValueError(f"weights: the number of parameters must be positive, got {parameters}")
    return _header_bytes() + -(-4 * parameters // WORD_STRIDE) * WORD_STRIDE


def _start(parameters: int, buffer: int) -> int:
    return STAMP_BYTES + WORD_STRIDE + buffer * _stride(parameters)


def _header(segment: Segment, parameters: int, buffer: int) -> Words:
    return Words(segment.buffer, _start(parameters, buffer), _HEADER_WORDS)
