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
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.errors import NotFound, ResourceError
from mlxe_async.storage.files import expect_file, is_file, is_folder
from mlxe_async.storage.run_folder import EARLIER, LOG, find_run, is_held
from mlxe_async.storage.safe_text import visible

LONGEST_LINE = 8 * 2**20
READ_BYTES = 2**18
POLL_S = 0.05
MOST_RESUMPTIONS = 1000
RESUMED = b'"run_resume"'
_decode = json.JSONDecoder().decode
DECODED_AT_ONCE = 128
_WORD = secrets.token_hex(16)
"Stands between lines that are decoded together: no line can know it."
_BETWEEN = f',"{_WORD}",'.encode()


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
            yield from lines if is_void is _never else (line for line in lines if not is_void(line))


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
        for line in tail.marked(RESUMED):
            if (undone := _undone_by(line)) is not None and len(ranges) < MOST_RESUMPTIONS:
                ranges.append(undone)
    return _within(ranges)


def _undone_by(line: Mapping[str, Any]) -> tuple[int, int] | None:
    """Numbers of the first and the last line that a resumption made void; None for any other line."""
    first, last = line.get("void_from"), line.get("void_to")
    is_one = line.get("event") == "run_resume" and type(first) is int and type(last) is int
    return (first, last) if is_one else None  # type: ignore[return-value]  # they are whole numbers


def _within(ranges: list[tuple[int, int]]) -> Callable[[Mapping[str, Any]], bool]:
    if not ranges:
        return _never

    def is_void(line: Mapping[str, Any]) -> bool:
        number = line.get("seq")
        return type(number) is int and any(first <= number <= last for first, last in ranges)

    return is_void


class LiveLog:
    """A log read piece by piece, so far and to come, for a program that does other things between two pieces.

    What it holds at any moment is bounded, whatever the file is: a log may come from anywhere.

    Args:
        path: the log file, which need not be there yet.
        longest: bytes of the longest line that is taken; None: 8 MiB.
        choose: the lines of a piece that are decoded, of all; all, if left out, and of a run that was resumed.
    """

    def __init__(
        self,
        path: Path,
        longest: int | None = None,
        choose: Callable[[list[bytes]], list[bytes]] = lambda lines: lines,
    ) -> None:
        self._choose = choose
        self.is_stale = False
        "A resumption came that makes lines void which were told before: the log is to be read anew."
        self._longest = LONGEST_LINE if longest is None else longest
        self._ranges: list[tuple[int, int]] = []
        self._is_void: Callable[[Mapping[str, Any]], bool] = _never
        self._ahead: Tail | None = Tail(path, longest)  # looks for resumptions before anything is told
        self._tail = Tail(path, longest)

    @property
    def share_read(self) -> float:
        """Part of the log so far that was told, from 0 to 1."""
        return 0.0 if self._ahead is not None else self._tail.share_read

    def more(self) -> list[dict[str, Any]] | None:
        """Some more events, perhaps none; None when there is nothing new for now.

        Raises:
            ResourceError: the log cannot be read.
        """
        if self._ahead is not None:
            return self._look_ahead(self._ahead)
        lines = self._tail.lines()
        if lines is None:
            return None
        if not self._ranges:  # else each line may be void
            lines = self._choose(lines)
        events = [event for line in lines if len(line) <= self._longest and (event := event_of(line)) is not None]
        for event in events:
            if (undone := _undone_by(event)) is not None and undone[0] <= undone[1]:
                self.is_stale |= undone not in self._ranges and len(self._ranges) < MOST_RESUMPTIONS
        return [event for event in events if not self._is_void(event)]

    def close(self) -> None:
        """Close the file. May be called twice."""
        for tail in (self._tail, self._ahead):
            if tail is not None:
                tail.close()

    def _look_ahead(self, ahead: Tail) -> list[dict[str, Any]]:
        lines = ahead.lines()
        if lines is None:
            ahead.close()
            self._ahead, self._is_void = None, _within(self._ranges)
            return []
        for line in lines:
            if RESUMED in line and len(line) <= self._longest and (event := event_of(line)) is not None:
                undone = _undone_by(event)
                if undone is not None and undone not in self._ranges and len(self._ranges) < MOST_RESUMPTIONS:
                    self._ranges.append(undone)
        return []


class Tail:
    """Complete lines of a growing log, each once; a context that holds the file open.

    Args:
        path: of the log; it need not be there yet.
        longest: bytes beyond which a line may be passed over; None: 8 MiB.
    """

    def __init__(self, path: Path, longest: int | None = None) -> None:
        self._path, self._longest = path, LONGEST_LINE if longest is None else longest
        self._descriptor = self._later = -1
        self._position = 0
        self._rest = b""
        self._has_begun = False

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. May be called twice."""
        for descriptor in (self._descriptor, self._later):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._later = -1

    def read(self) -> list[dict[str, Any]]:
        """Some more events; an empty list when there are none for now."""
        events: list[dict[str, Any]] = []
        while not events and (lines := self.lines()) is not None:
            events = events_of(lines)
        return events

    def marked(self, mark: bytes) -> Iterator[dict[str, Any]]:
        """All events so far whose line holds certain bytes; the others are not looked at."""
        while (lines := self.lines()) is not None:
            yield from (event for line in lines if mark in line and (event := event_of(line)) is not None)

    def lines(self) -> list[bytes] | None:
        """Some more whole lines; None when there is nothing new for now."""
        data = self._more()
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._longest:
            self._rest = b""
        return lines

    @property
    def share_read(self) -> float:
        """Part of the file that was read, from 0 to 1; 0 before it was opened or while an earlier part is read."""
        if self._descriptor < 0 or self._later >= 0:
            return 0.0
        return min(1.0, self._position / max(1, os.fstat(self._descriptor).st_size))

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


def events_of(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The events that lines of a log tell, those that are no JSON objects left out."""
    events: list[dict[str, Any]] = []
    for begin in range(0, len(lines), DECODED_AT_ONCE):
        some = lines[begin : begin + DECODED_AT_ONCE]
        events += _all_of(some) or [event for line in some if (event := event_of(line)) is not None]
    return events


def _all_of(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The events of lines that are JSON objects, all of them, read by one call, which takes less; else none."""
    text = b"[" + _BETWEEN.join(lines) + b"]"
    try:
        told = _decode(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return []
    events = told[::2]
    # A line that is half an object would take in what stands between the lines, or lack it.
    is_whole = len(told) == 2 * len(lines) - 1 and all(word == _WORD for word in told[1::2])
    return events if is_whole and all(type(event) is dict for event in events) else []


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event that a line of a log tells; None if it is no JSON object."""
    try:
        event = _decode(line.decode("utf-8", "surrogatepass"))  # json.loads would first guess the encoding
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
