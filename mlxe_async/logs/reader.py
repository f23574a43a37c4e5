"""Reads `log.jsonl` back, whole or while it is being written.

Both survive what happens to real files: a torn last line, a line that is no JSON, a log that is rotated away or cut to
nothing under the reader's eyes, and a run that was killed without a word.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from mlxe_async.run_folder import LOG, find_run, is_held

LONGEST_LINE = 8 * 2**20
READ_BYTES = 2**18
LIVE_CHECK_S = 0.5
POLL_S = 0.2  # where inotify is not to be had

# From inotify(7): modified, created, moved here.
_WATCHED = 0x002 | 0x100 | 0x080


def read_log(run: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Every event of a run so far, in order.

    Args:
        run: a run folder, the name of one in `runs/`, `latest`, or a log file itself.

    Raises:
        ResourceError: there is no such run.
    """
    with _Tail(log_of(run)) as tail:
        while lines := tail.read():
            yield from lines


async def follow(run: str | os.PathLike[str]) -> AsyncIterator[dict[str, Any]]:
    """Every event of a run, first those so far and then those to come, until `run_end` or the death of the run.

    Args:
        run: as for `read_log`. A log file that does not exist yet is waited for.

    Raises:
        ResourceError: there is no such run.
    """
    path, ended = log_of(run), False
    with _Tail(path) as tail, _Changes(path.parent) as changes:
        while True:
            # Asked before reading: what a run wrote before it died is still told.
            alive = is_held(path.parent)
            lines = tail.read()
            for line in lines:
                yield line
                ended = line.get("event") == "run_end"  # unless the run was resumed, and there is more
            if not lines:
                if alive is False or ended:
                    return
                await changes.wait(LIVE_CHECK_S)


def log_of(run: str | os.PathLike[str]) -> Path:
    """The log file of a run; a path to a file is taken as it is.

    Raises:
        ResourceError: there is no such run.
    """
    path = Path(run)
    return path.absolute() if path.is_file() or path.suffix == ".jsonl" else find_run(run) / LOG


class _Tail:
    """Complete lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._position = 0
        self._rest = b""

    def __enter__(self) -> _Tail:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self) -> list[dict[str, Any]]:
        """Some more events; an empty list when there are none for now."""
        events: list[dict[str, Any]] = []
        while not events:
            data = self._more()
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > LONGEST_LINE:
                self._rest = b""
            events = [event for line in lines if (event := _event(line)) is not None]
        return events

    def _more(self) -> bytes:
        if self._descriptor < 0 and not self._open():
            return b""
        if os.fstat(self._descriptor).st_size < self._position:  # cut to nothing and written anew
            self._position, self._rest = 0, b""
        data = os.pread(self._descriptor, READ_BYTES, self._position)
        self._position += len(data)
        if not data and self._is_replaced():
            os.close(self._descriptor)
            self._descriptor, self._position, self._rest = -1, 0, b""
            return self._more()
        return data

    def _open(self) -> bool:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        return True

    def _is_replaced(self) -> bool:
        try:
            there = self._path.stat()
        except OSError:
            return False
        here = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


class _Changes:
    """Wakes when something in a folder changes; without inotify, when the time is up."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = -1
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(folder), ctypes.c_uint32(_WATCHED)) < 0:
            os.close(descriptor)
            descriptor = -1
        self._descriptor = descriptor

    def __enter__(self) -> _Changes:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    async def wait(self, seconds: float) -> None:
        """Return on a change, or after so many seconds."""
        if self._descriptor < 0:
            await asyncio.sleep(min(seconds, POLL_S))
            return
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        loop.add_reader(self._descriptor, changed.set)
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
            os.read(self._descriptor, 2**16)
        except TimeoutError:
            return
        finally:
            loop.remove_reader(self._descriptor)
