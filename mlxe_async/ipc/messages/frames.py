"""Control messages as bytes: a checked header, then JSON. Never pickle, never more than 16 MiB.

A frame is `magic (4) | layout version (4) | length (4) | crc32 (4) | JSON object in UTF-8`, little endian. A process
that reads a frame that is not exactly this stops listening to its peer: there is no way to find the next frame in a
stream that has lost step, and guessing is how control channels execute garbage.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from typing import Any

from mlxe_async.errors import ProtocolError
from mlxe_async.plain_json import encoding

MAGIC = b"MLXF"
LAYOUT_VERSION = 1
MAX_PAYLOAD = 1 << 24
"""Bytes of an answer at most: a rollout tells each of its finished episodes in some 50 bytes."""
MAX_REQUEST = 1 << 20
"""The same of what a process is asked, which it must take from its channel at once."""
HEADER = struct.Struct("<4sIII")

Message = dict[str, Any]


def encode(message: Message, most: int = MAX_PAYLOAD) -> bytes:
    """The frame of one message of at most that many bytes.

    Raises:
        ProtocolError: the message is not plain JSON, holds NaN or an infinity, or is larger.
    """
    try:
        payload = _to_json(message).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"message cannot be framed: {error}") from error
    if len(payload) > most:
        raise ProtocolError(f"message cannot be framed: {len(payload)} bytes, at most {most} are allowed")
    return HEADER.pack(MAGIC, LAYOUT_VERSION, len(payload), zlib.crc32(payload)) + payload


class Decoder:
    """Cuts a stream of bytes into messages. After a `ProtocolError` it must not be fed again."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def partial(self) -> bool:
        """True if a frame has begun whose rest is still to come."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes as they arrive and return the messages they complete, oldest first.

        Raises:
            ProtocolError: the bytes are not a frame; the text shows their first bytes in hexadecimal.
        """
        if not self._pending and len(data) >= HEADER.size:
            # One frame and nothing else, as nearly always. What is wrong with any other is told below.
            payload = data[HEADER.size :]
            expected = (MAGIC, LAYOUT_VERSION, len(payload), zlib.crc32(payload))
            if len(payload) <= MAX_PAYLOAD and HEADER.unpack_from(data) == expected:
                return [self._parse(payload, data)]
        self._pending += data
        messages = []
        while len(self._pending) >= HEADER.size:
            magic, version, length, crc = HEADER.unpack_from(self._pending)
            if magic != MAGIC:
                raise _bad(f"magic {magic.hex()}, expected {MAGIC.hex()}", self._pending)
            if version != LAYOUT_VERSION:
                raise _bad(f"frame version {version}, expected {LAYOUT_VERSION}", self._pending)
            if length > MAX_PAYLOAD:
                raise _bad(f"length {length}, at most {MAX_PAYLOAD} is allowed", self._pending)
            end = HEADER.size + length
            if len(self._pending) < end:
                break
            payload = bytes(self._pending[HEADER.size : end])
            if zlib.crc32(payload) != crc:
                raise _bad("checksum does not match", self._pending)
            messages.append(self._parse(payload, self._pending))
            del self._pending[:end]
        else:
            # A wrong peer is told apart from a slow one as early as its bytes allow.
            if not MAGIC.startswith(self._pending[: len(MAGIC)]):
                raise _bad("magic does not match", self._pending)
        return messages

    def _parse(self, payload: bytes, frame: bytes | bytearray) -> Message:
        try:
            text = payload.decode()
            message, end = _FROM_JSON.raw_decode(text)
        except (ValueError, RecursionError) as error:
            raise _bad(f"not JSON: {error}", frame) from error
        if end != len(text):
            raise _bad(f"not JSON: more follows after {end} characters", frame)
        if not isinstance(message, dict):
            raise _bad(f"a {type(message).__name__}, expected an object", frame)
        return message


def _bad(what: str, frame: bytes | bytearray) -> ProtocolError:
    return ProtocolError(f"not a control frame: {what} (first bytes {bytes(frame[:32]).hex()})")


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:32]} is out of range")
    return value


_to_json = encoding(separators=(",", ":"))
# Made once: `json.loads` makes its own anew for every call with options, which doubles the cost.
_FROM_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
