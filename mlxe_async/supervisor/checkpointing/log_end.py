"""How the log of an interrupted run ends: its last whole line, what is torn behind it, how far it tells of."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxe_async.errors import ResourceError
from mlxe_async.logs.journal import open_log
from mlxe_async.logs.reader import LONGEST_LINE, event_of
from mlxe_async.storage.files import open_plain
from mlxe_async.storage.json_checks import MOST_COUNT
from mlxe_async.storage.run_folder import EARLIER, RunFolder

TAIL_BYTES = 2**20
_CHECKPOINT = b'"event": "checkpoint"'


@dataclass(frozen=True)
class LogEnd:
    """How the log of the run so far ends.

    Args:
        next_seq: number of the line that comes next.
        version: newest version that its last lines tell of.
        has_last_word: whether the run ended by itself or was asked to.
        env_steps: environment steps that its last lines tell of.
        episodes: finished episodes that they tell of.
        whole_bytes: bytes up to the end of its last whole line.
        torn: what stands behind it: a line of which only the beginning was written, or the first 8 MiB of that.
        torn_bytes: how long that is.
        is_open: whether the last whole line lacks its newline.
    """

    next_seq: int
    version: int
    has_last_word: bool
    env_steps: int = 0
    episodes: int = 0
    whole_bytes: int = field(default=0, compare=False)
    torn: bytes = b""
    torn_bytes: int = 0
    is_open: bool = False

    def mend(self, path: Path) -> None:
        """Cut off what is torn and end what is open, so that each line of the log is JSON.

        Raises:
            OSError: the log cannot be written.
        """
        if not self.torn and not self.is_open:
            return
        descriptor = open_log(path)
        try:
            if self.torn:
                os.ftruncate(descriptor, self.whole_bytes)
            if self.is_open:
                os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)


def read_log_end(path: Path, *, writes: bool = True) -> LogEnd:
    """Read the last lines of a log, and see that it can be written to, if that is wanted.

    Args:
        path: of the log.
        writes: whether it must be possible to write to it.

    Raises:
        ResourceError: it cannot be written to.
    """
    try:
        descriptor = open_log(path) if writes else None
    except OSError as error:
        raise ResourceError(f"{path} cannot be written: {error.strerror}") from error
    try:
        if descriptor is None and not path.exists():
            return LogEnd(0, 0, has_last_word=False)
        size = path.lstat().st_size
    finally:
        if descriptor is not None:
            os.close(descriptor)
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ResourceError(f"{path} is no ordinary file, expected the log of a run")
    whole_bytes = _last_newline(path, size)
    torn = _last_bytes(path, min(size, whole_bytes + LONGEST_LINE), size - whole_bytes)
    is_open = size - whole_bytes <= LONGEST_LINE and event_of(torn) is not None
    if is_open:
        torn, whole_bytes = b"", size
    cut = size - whole_bytes
    data = _last_bytes(path, whole_bytes, TAIL_BYTES)
    if size < TAIL_BYTES:  # a new file has been begun lately, or the log is short
        earlier = path.with_name(path.name + EARLIER)
        with contextlib.suppress(OSError):
            data = _last_bytes(earlier, earlier.lstat().st_size, TAIL_BYTES) + b"\n" + data
    seq, version, last, counted = -1, 0, "", dict.fromkeys(("env_steps", "episodes"), 0)
    for line in data.splitlines():
        event = event_of(line)
        if event is not None and _is_count(event.get("seq")):
            seq, last = event["seq"], str(event.get("event"))
            if _is_count(event.get("version")):
                version = max(version, event["version"])
            for name, before in counted.items():
                if _is_count(event.get(name)):
                    counted[name] = event[name] if last == "run_resume" else max(before, event[name])
    steps, episodes = counted["env_steps"], counted["episodes"]
    return LogEnd(seq + 1, version, last == "run_end", steps, episodes, whole_bytes, torn, cut, is_open)


def tells_of_checkpoints(folder: RunFolder) -> bool:
    """Return whether the log tells of a checkpoint that was saved."""
    for path in (folder.log_path, folder.log_path.with_name(folder.log_path.name + EARLIER)):
        with contextlib.suppress(FileNotFoundError), open_plain(path) as file:
            before = b""
            while piece := file.read(TAIL_BYTES):
                if _CHECKPOINT in before + piece:
                    return True
                before = piece[-len(_CHECKPOINT) :]
    return False


def _last_newline(path: Path, size: int) -> int:
    """Bytes up to the end of the last whole line, found piece by piece: a log may have a line of any length."""
    end = size
    while end:
        piece = _last_bytes(path, end, TAIL_BYTES)
        if (at := piece.rfind(b"\n")) >= 0:
            return end - len(piece) + at + 1
        end -= len(piece)
    return 0


def _last_bytes(path: Path, end: int, most: int) -> bytes:
    begin = max(0, end - most)
    with open_plain(path) as file:
        file.seek(begin)
        return file.read(end - begin)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_COUNT
