"""The recording of an `oa` run, a file of bytes: what happened in which order, to be repeated bit for bit.

Rollouts, updates and draws each derive their randomness from seeds and counters. What a seed does not tell is who was
faster: under which weights a rollout was played, how many blocks of which lane the memorizer had taken in when it drew,
what the counters said when the learner learned, in which order gradients came. That is all a recording holds, some
thirty bytes for each.

The file: `MAGIC`, then frames of `kind (1 byte), length (4), payload, CRC-32 of all these (4)`, all little-endian. The
first holds facts as JSON. A file that ends in the middle of a frame ends with the one before.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from mlxe_async.errors import ResourceError, SettingsError
from mlxe_async.storage.files import open_plain
from mlxe_async.storage.run_folder import RECORDING
from mlxe_async.supervisor.recording.steps import (
    Applied,
    Ended,
    Ingested,
    Learned,
    Memorized,
    Published,
    Pushed,
    Rollout,
    Step,
)

MAGIC = b"MLXEREC1"
MOST_BYTES = 1 << 32
AT_ONCE_BYTES = 1 << 14
_HEAD, _SUM = struct.Struct("<BI"), struct.Struct("<I")
_LONGEST = 1 << 20
_KINDS: tuple[type[Step], ...] = (Rollout, Ingested, Memorized, Learned, Published, Ended, Pushed, Applied)
_NUMBER = {kind: number for number, kind in enumerate(_KINDS, start=1)}


class Recording:
    """Writes a recording beside a run.

    Args:
        path: of the new file.
        facts: JSON that the replay may compare.

    Raises:
        ResourceError: the file cannot be made.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._path = path
        self._waiting = bytearray(MAGIC + _frame(0, json.dumps(dict(facts)).encode()))
        try:
            self._descriptor: int | None = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise ResourceError(f"the recording {path} cannot be made: {error.strerror}") from error
        self.failure = ""
        "Why it ends early."

    def note(self, step: Step) -> None:
        """Write a step; after the end, or where the disk gave up, nothing more."""
        if self._descriptor is None:
            return
        self._waiting += _frame(_NUMBER[type(step)], step.pack())
        if isinstance(step, Ended):
            self.close()
        elif len(self._waiting) > AT_ONCE_BYTES:
            self._write()

    def close(self) -> None:
        """Write what still waits, and close the file."""
        self._write()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self) -> None:
        if self._descriptor is None:
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
        except OSError as error:
            self.failure = f"the recording {self._path} ends early: {error.strerror}"
            self._waiting.clear()
            os.close(self._descriptor)
            self._descriptor = None


def _frame(kind: int, payload: bytes) -> bytes:
    body = _HEAD.pack(kind, len(payload)) + payload
    return body + _SUM.pack(crc32(body))


@dataclass(frozen=True)
class Recorded:
    """A recording that was read.

    Args:
        facts: of the run.
        steps: in order.
        is_whole: it ends with a frame that is whole.
    """

    facts: dict[str, Any]
    steps: Sequence[Step]
    is_whole: bool

    @classmethod
    def read(cls, folder: Path) -> Recorded:
        """Read the recording of a run.

        Raises:
            SettingsError: there is none, or it is none.
        """
        path = folder / RECORDING
        try:
            with open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size > MOST_BYTES:
                    raise SettingsError([f"{path}: expected at most {MOST_BYTES:,} bytes, got {size:,}"])
                data = file.read()
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}; only runs with run.record = true can be replayed"
            raise SettingsError([message]) from error
        if not data.startswith(MAGIC):
            raise SettingsError([f"{path}: expected a recording, which begins with {MAGIC!r}, got {data[:8]!r}"])
        frames = list(_frames(data))
        used = len(MAGIC) + sum(_HEAD.size + len(payload) + _SUM.size for _, payload in frames)
        if not frames or frames[0][0] != 0:
            raise SettingsError([f"{path}: expected the facts of a run at its beginning; the file is damaged"])
        steps: list[Step] = []
        try:
            facts = json.loads(frames[0][1])
            steps += [_KINDS[kind - 1].unpack(payload) for kind, payload in frames[1:]]
        except (ValueError, IndexError, TypeError, struct.error) as error:
            raise SettingsError([f"{path}: damaged after step {len(steps)}: {error}"]) from error
        if _is_damaged(data, used):  # not cut off, as by the death of who wrote it
            raise SettingsError([f"{path}: damaged after step {len(steps)}, at byte {used:,} of {len(data):,}"])
        return cls(facts, steps, used == len(data))

    @property
    def end(self) -> Ended | None:
        """How it ends, if it says so."""
        return self.steps[-1] if self.steps and isinstance(self.steps[-1], Ended) else None

    def backlog(self) -> int:
        """Most blocks of a lane that wait when each rollout is played as soon as its weights are out."""
        played: dict[int, list[Rollout]] = {}
        for step in self.steps:
            if isinstance(step, Rollout):
                played.setdefault(step.version, []).append(step)
        written: dict[int, int] = {}
        taken: dict[int, int] = {}
        most = version = 0
        for step in self.steps:
            if isinstance(step, Ingested | Memorized):
                taken.update(enumerate(step.positions))
            elif isinstance(step, Learned | Published) and step.version > version:
                version = step.version
                for rollout in played.get(version, ()):
                    written[rollout.executor] = written.get(rollout.executor, 0) + rollout.blocks
                most = max([most, *(count - taken.get(index, 0) for index, count in written.items())])
        return most


def _is_damaged(data: bytes, at: int) -> bool:
    """Return whether the frame that begins here, which is not whole, is there to its end nevertheless."""
    if at + _HEAD.size > len(data):
        return False
    length = _HEAD.unpack_from(data, at)[1]
    return bool(length > _LONGEST or at + _HEAD.size + length + _SUM.size <= len(data))


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each whole frame, up to the first that is not."""
    at = len(MAGIC)
    while at + _HEAD.size <= len(data):
        kind, length = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if length > _LONGEST or end + _SUM.size > len(data):
            return
        if _SUM.unpack_from(data, end)[0] != crc32(data[at:end]):
            return
        yield kind, data[at + _HEAD.size : end]
        at = end + _SUM.size
