"""Reads `log.jsonl` back, whole or while it is being written.

Both ways survive what happens to real files: a torn last line, a line that is no JSON, a log that is rotated away or
cut to nothing under the reader's eyes, and a run that was killed without a word. The earlier part of a log that had
become too long is read before the rest.

A run that was resumed goes on from a checkpoint, earlier than its last words: the lines in between tell what was
undone, and most of it is told again. They are left out unless they are asked for.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxe_async.errors import NotFound, ResourceError
from mlxe_async.storage.files import expect_file, is_file, is_folder
from mlxe_async.storage.run_folder import EARLIER, LOG, find_run, is_held
from mlxe_async.storage.safe_text import visible

LONGEST_LINE = 8 * 2**20
READ_BYTES = 2**18
POLL_S = 0.05
_decode = json.JSONDecoder().decode


def read_log(run: str | os.PathLike[str], *, void: bool = False) -> Iterator[dict[str, Any]]:
    """Every event of a run so far, in order.

    Args:
        run: a run folder, the name of one in `runs/`, `latest`, or a log file itself.
        void: whether events that a resumption of the run made void are told too; see `run_resume`.

    Raises:
        NotFound: there is no such run.
    """
    path = log_of(run)
    is_void = _never if void else _void_lines(path)
    with Tail(path) as tail:
        while lines := tail.read():
            yield from (line for line in lines if not is_void(line))


async def follow(run: str | os.PathLike[str], *, void: bool = False) -> AsyncIterator[dict[str, Any]]:
    """Every event of a run, first those so far and then those to come, until `run_end` or the death of the run.

    Args:
        run: as for `read_log`. A log file that does not exist yet is waited for.
        void: as for `read_log`; what a resumption to come will make void has been told by then.

    Raises:
        NotFound: there is no such run, or what is there is no run, and no run that is being started.
    """
    path, ended, told = log_of(run), False, False
    is_void = _never if void else _void_lines(path)
    with Tail(path) as tail:
        while True:
            # Asked before reading: what a run wrote before it died is still told.
            alive = is_held(path.parent)
            lines = tail.read()
            told = told or bool(lines)
            if not told and alive is None and Path(run).suffix != ".jsonl":
                raise NotFound(f"{visible(str(run), 200)} is no run: expected a run folder, or a log with events")
            for line in lines:
                if is_void(line):
                    continue
                yield line
                ended = line.get("event") == "run_end"  # unless the run was resumed, and there is more
            if not lines:
                if alive is False or ended:
                    return
                await asyncio.sleep(POLL_S)


def log_of(run: str | os.PathLike[str]) -> Path:
    """The log file of a run; a path to a file is taken as it is.

    Raises:
        NotFound: there is no such run.
    """
    path = Path(run)
    if is_file(path):
        return path.absolute()
    if path.suffix != ".jsonl":
        return find_run(run) / LOG
    if not is_folder(path.parent):
        raise NotFound(f"there is no log {visible(str(run), 200)}, nor the folder that it would be in")
    return path.absolute()


def _never(_line: Mapping[str, Any]) -> bool:
    return False


def _void_lines(path: Path) -> Callable[[Mapping[str, Any]], bool]:
    """Tells of a line whether a resumption, of those in the log by now, made it void."""
    ranges: list[tuple[int, int]] = []
    with Tail(path) as tail:
        for line in tail.marked(b'"run_resume"'):
            first, last = line.get("void_from"), line.get("void_to")
            if line.get("event") == "run_resume" and type(first) is int and type(last) is int:
                ranges.append((first, last))
    if not ranges:
        return _never

    def is_void(line: Mapping[str, Any]) -> bool:
        number = line.get("seq")
        return type(number) is int and any(first <= number <= last for first, last in ranges)

    return is_void


class Tail:
    """Complete lines of a growing log, each once; a context that holds the file open.

    Args:
        path: of the log; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = self._later = -1
        self._position = 0
        self._rest = b""
        self._has_begun = False

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing more is read."""
        for descriptor in (self._descriptor, self._later):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._later = -1

    def read(self) -> list[dict[str, Any]]:
        """Some more events; an empty list when there are none for now."""
        events: list[dict[str, Any]] = []
        while not events and (lines := self._lines()) is not None:
            events = [event for line in lines if (event := event_of(line)) is not None]
        return events

    def marked(self, mark: bytes) -> Iterator[dict[str, Any]]:
        """All events so far whose line holds certain bytes; the others are not looked at."""
        while (lines := self._lines()) is not None:
            yield from (event for line in lines if mark in line and (event := event_of(line)) is not None)

    def _lines(self) -> list[bytes] | None:
        """Some more whole lines; None when there is nothing new for now."""
        data = self._more()
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        return lines

    def _more(self) -> bytes:
        if self._descriptor < 0 and not self._open():
            return b""
        if self._rest and not self._is_rest_there():  # cut off, as when a run is resumed
            self._position, self._rest = self._position - len(self._rest), b""
        if os.fstat(self._descriptor).st_size < self._position:  # cut to nothing and written anew
            self._position, self._rest = 0, b""
        if data := self._next_bytes():
            return data
        if self._later < 0 and not self._is_replaced():
            return b""
        if data := self._next_bytes():  # written after the first look, before the file was replaced
            return data
        os.close(self._descriptor)
        self._descriptor, self._later, self._position, self._rest = self._later, -1, 0, b""
        return self._more()

    def _is_rest_there(self) -> bool:
        """Return whether the beginning of a line that has been read is still in the file."""
        size = len(self._rest)
        return self._bytes(size, self._position - size) == self._rest

    def _next_bytes(self) -> bytes:
        data = self._bytes(READ_BYTES, self._position)
        self._position += len(data)
        return data

    def _bytes(self, size: int, at: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, at)
        except OSError as error:
            raise ResourceError(f"the log {visible(str(self._path), 200)} cannot be read: {error.strerror}") from error

    def _open(self) -> bool:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            expect_file(self._descriptor, self._path)
        except OSError as error:
            raise ResourceError(f"the log {visible(str(self._path), 200)} cannot be read: {error.strerror}") from error
        if not self._has_begun:
            self._has_begun = True
            self._begin_earlier()
        return True

    def _begin_earlier(self) -> None:
        """Have the earlier part of the log read first, if there is one."""
        try:
            earlier = os.open(f"{self._path}{EARLIER}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        if _is_same(os.fstat(earlier), os.fstat(self._descriptor)):  # it was moved there since it was opened
            os.close(earlier)
        else:
            self._descriptor, self._later = earlier, self._descriptor

    def _is_replaced(self) -> bool:
        try:
            there = self._path.stat()
        except OSError:
            return False
        return not _is_same(there, os.fstat(self._descriptor))


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event that a line of a log tells; None if it is no JSON object."""
    try:
        event = _decode(line.decode("utf-8", "surrogatepass"))  # json.loads would first guess the encoding
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
