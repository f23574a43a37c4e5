"""Writes `log.jsonl`: whole lines in one `write`, so that a reader never sees half of one, and never an exception.

A log that cannot be written must not stop learning. On a full disk lines are dropped and counted, and the first line
that fits again is a `log_gap`. When someone rotates the file away, a new one is begun within seconds; when it has
become too long, it is rotated here: the part before is kept beside it as `log.jsonl.1`, and what was there goes.

What a run does again and again, and no subscriber asks for, may wait for a moment, to be written together: by turns of
the loop that have other work to do between them, each line would cost several times as much. Whatever else happens is
written at once, and what waited before it.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import structlog
from structlog.typing import Processor

from mlxe_async.logs.events import COMMON, Event, LogGap
from mlxe_async.logs.events import Warning as WarningEvent
from mlxe_async.logs.lines import many_lines
from mlxe_async.plain_json import encoding
from mlxe_async.storage.files import expect_file
from mlxe_async.storage.run_folder import EARLIER
from mlxe_async.storage.safe_text import is_secret, redact

LONGEST_TEXT = 16 * 1024
DEEPEST = 8
ROTATION_CHECK_S = 5.0
RETRY_S = 1.0
WARN_S = 60.0
LINES_AT_ONCE = 256

Subscriber = Callable[[dict[str, Any]], None]
Columns = Callable[[Mapping[str, Any], Mapping[str, Sequence[Any]]], None]
"""Takes many lines of one event at once: what they share, and columns of what they do not."""
_Subscription = tuple[Subscriber, Collection[str] | None, Columns | None]
Moment = tuple[int, int]
_E = TypeVar("_E", bound=Event)


class _Many(NamedTuple):
    """Events of one kind about one role: what all of them share, and columns of what they do not."""

    kind: type[Event]
    same: Mapping[str, Any]
    columns: Mapping[str, Sequence[Any]]
    role: str
    idx: int | None


class Journal:
    """The log of one run, written by the supervisor alone.

    Args:
        target: path of the file, appended to and made with mode 0600; or an open descriptor, which stays the caller's.
        run: the run's name, bound to every line.
        first_seq: number of the first line; a resumed run goes on where it stopped.
        most_bytes: bytes that the file and its earlier part may take together, looked at every five seconds; None:
            any number. Of no effect on a descriptor.

    Raises:
        OSError: the file cannot be opened. Later failures are counted instead, in `dropped`.
    """

    def __init__(
        self, target: str | os.PathLike[str] | int, run: str, *, first_seq: int = 0, most_bytes: int | None = None
    ) -> None:
        self.run = run
        self._most_bytes = most_bytes
        self._cannot_turn_over = False
        self.dropped = 0
        self._path = None if isinstance(target, int) else Path(target)
        self._sink = _LineSink(target if isinstance(target, int) else open_log(target))
        self._seq = first_seq
        self._line: dict[str, Any] = {}
        self._gap = 0  # lines lost since the last one that could be written
        self._retry_at = 0.0
        self._warn_at = 0.0
        self._check_at = time.monotonic() + ROTATION_CHECK_S
        self._subscribers: list[_Subscription] = []
        self._asked_for: Collection[str] | None = frozenset()
        "Events whose lines a subscriber wants at once; None: all."
        self._held: list[tuple[Moment, Callable[..., None], tuple[Any, ...]]] = []
        self._moment: Moment | None = None  # of the line that is written now, if it has waited
        self._later: Callable[[Callable[[], None]], object] | None = None
        self._thread = 0
        self._lock = threading.RLock()  # checkpoints are saved, and told, by another thread
        # Its own configuration: a program that embeds a run keeps its own structlog.
        self._processors: list[Processor] = [self._cleaned, _rendered]
        self._log = structlog.wrap_logger(
            self._sink, processors=self._processors, wrapper_class=_Straight, context_class=dict
        ).bind()  # bound once, not anew for each line

    def process(self, processor: Processor) -> None:
        """Have one of structlog's processors called with each line, after those that were added before.

        Args:
            processor: takes a logger, `"msg"` and the line as a dict; gives what is cleaned and written instead, or
                raises `structlog.DropEvent`.
        """
        self.flush()  # what waits happened before
        self._processors.insert(-2, processor)

    def hold_routine(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Have routine lines and ends of episodes wait for `flush` from now on, if there are no subscribers.

        Those alone that come from the calling thread.

        Args:
            later: has what it is given called in a moment, by this thread.
        """
        self._later, self._thread = later, threading.get_ident()

    def flush(self) -> None:
        """Write what waits, in its order and with the time at which it happened."""
        with self._lock:
            held, self._held = self._held, []
            if not held:
                return
            # Line by line where lines are missing: what fits again is told of first.
            together = self._gap == 0
            routine = self._write_routine if together and len(self._processors) == 2 else None
            self._moment = held[0][0]  # also of what there is to say about the file
            try:
                if together:
                    self._look_at_file(time.monotonic())
                    self._sink.gather()
                for self._moment, write, arguments in held:
                    (self._gather_routine if write == routine else write)(*arguments)
            finally:
                self._moment = None
                if together and (lost := self._sink.write_gathered()):
                    self.dropped += lost
                    self._gap += lost

    def emit(self, event: Event, role: str = "supervisor", idx: int | None = None) -> None:
        """Write one event and tell the subscribers. Never raises because of the disk, the values or a subscriber."""
        with self._lock:
            self.flush()
            self._moment = None  # a subscriber may emit, too, in the middle of a flush
            self._emit(type(event), vars(event), role, idx)

    def emit_routine(self, event: functools.partial[_E], role: str = "supervisor", idx: int | None = None) -> None:
        """Write one event; it may wait, and is made only then.

        Args:
            event: its kind, with values that do not change any more.
            role: the role that it is about.
            idx: which one of these.
        """
        kind = cast("type[Event]", event.func)
        if not self._holds(kind.name, self._write_routine, event, role, idx):
            self.emit(event(), role, idx)

    def _gather_routine(self, event: functools.partial[_E], role: str, idx: int | None) -> None:
        """Do as `_write_routine`, while lines are gathered and structlog has no processor but our two.

        It costs less: no line can be missing, and the file is looked at once for all of them.
        """
        kind, values = _kind_and_values(event)
        line = {**self._head(), "run": self.run, "event": kind.name, "role": role, "idx": idx}
        self._sink.msg(_to_json(self._cleaned(None, "msg", {**line, **_defaults_of(kind), **values})))
        if self._subscribers:
            self._tell()

    def _write_routine(self, event: functools.partial[_E], role: str, idx: int | None) -> None:
        """Write one event that has waited, without making it, if its values have all the names."""
        self._emit(*_kind_and_values(event), role, idx)

    def _holds(self, name: str, write: Callable[..., None], *arguments: Any) -> bool:
        """Return whether this waits from now on."""
        if self._later is None or threading.get_ident() != self._thread:
            return False
        if self._asked_for is None or name in self._asked_for:
            return False
        with self._lock:
            if not self._held:
                self._later(self.flush)
            self._held.append(((time.time_ns(), time.monotonic_ns()), write, arguments))
        return True

    def _emit(self, kind: type[Event], values: Mapping[str, Any], role: str, idx: int | None) -> None:
        now = time.monotonic()
        with self._lock:
            self._look_at_file(now)
            if self._gap and now >= self._retry_at:
                self._retry_at = now + RETRY_S
                if self._write(LogGap, {"dropped": self._gap, "cause": self._sink.cause}):
                    self._gap = 0
                    self._tell()
            self._sink.shut = self._gap > 0  # never a line before the one that says how many are missing
            if not self._write(kind, values, role, idx):
                self.dropped += 1
                self._gap += 1
            self._sink.shut = False
            self._tell()
            if self._gap and now >= self._warn_at:
                self._warn_at = now + WARN_S
                self._sink.shut = True  # for the subscribers only: there is no room for it in the file
                self._write(WarningEvent, {"message": f"log.jsonl cannot be written: {self._sink.cause}", "loud": True})
                self._sink.shut = False
                self._tell()

    def emit_all(
        self,
        kind: type[Event],
        same: Mapping[str, Any],
        columns: Mapping[str, Sequence[Any]],
        role: str = "supervisor",
        idx: int | None = None,
    ) -> None:
        """Write many events of one kind: the same lines as from `emit`, made and written together; they may wait.

        Args:
            kind: of the events.
            same: fields whose value all of them share.
            columns: all other fields, a value for each event.
            role: the role that they are about.
            idx: which one of these.
        """
        many = _Many(kind, same, columns, role, idx)
        if not self._holds(kind.name, self._emit_all, many):
            with self._lock:
                self.flush()
                self._moment = None
                self._emit_all(many)

    def _emit_all(self, many: _Many) -> None:
        count = len(next(iter(many.columns.values())))
        for begin in range(0, count, LINES_AT_ONCE):
            some = {name: column[begin : begin + LINES_AT_ONCE] for name, column in many.columns.items()}
            if not self._write_all(many._replace(columns=some)):
                for row in zip(*some.values(), strict=True):
                    self._emit(many.kind, {**many.same, **dict(zip(some, row, strict=True))}, many.role, many.idx)

    def _write_all(self, many: _Many) -> bool:
        """Return whether the lines are in the file; else nothing has happened."""
        kind, same, columns, role, idx = many
        with self._lock:
            if self._gap or len(self._processors) > 2:
                return False
            head = clean({**self._head(), "run": self.run, "event": kind.name, "role": role, "idx": idx, **same})
            count = len(next(iter(columns.values())))
            columns = {**columns, "seq": range(self._seq, self._seq + count)}
            order = [*COMMON, *_defaults_of(kind)]
            try:
                lines = many_lines(head, columns, order)
            except ValueError:  # not for this way
                return False
            self._sink.msg("".join(lines)[:-1])
            if not self._sink.written:
                return False
            self._seq += count
            asked = [entry for entry in self._subscribers if entry[1] is None or kind.name in entry[1]]
            for entry in asked:
                if entry[2] is not None:
                    self._told(entry, functools.partial(entry[2], head, columns))
            if any(entry[2] is None for entry in asked):
                for row in zip(*columns.values(), strict=True):
                    known = {**head, **dict(zip(columns, row, strict=True))}
                    self._line = {name: known[name] for name in order}
                    self._tell(but_columns=True)
            return True

    def _note_asked_for(self) -> None:
        """Work out what is asked for: it is looked up at each line."""
        at_once = [wanted for _, wanted, columns in self._subscribers if columns is None]
        self._asked_for = None if None in at_once else frozenset().union(*(wanted or () for wanted in at_once))

    def _look_at_file(self, now: float) -> None:
        """Every five seconds: whether the file is still where it was, and not too large."""
        if self._path is not None and now >= self._check_at:
            self._check_at = now + ROTATION_CHECK_S
            self._sink.follow(self._path)
            self._turn_over(self._path)

    def _turn_over(self, path: Path) -> None:
        """Begin a new file where the present one has reached half of what both may take."""
        if self._most_bytes is None or self._sink.size() <= self._most_bytes // 2:
            return
        earlier = path.with_name(path.name + EARLIER)
        drops = os.path.lexists(earlier)
        try:
            path.replace(earlier)
        except OSError as error:
            if not self._cannot_turn_over:
                self._cannot_turn_over = True
                self._warn(f"expected to begin a new file, {earlier.name} cannot be made: {error.strerror}")
            return
        self._sink.follow(path)
        if drops:
            self._warn(f"its oldest lines were dropped, because [logs] max_mb = {self._most_bytes / 2**20:g}")

    def _warn(self, about_the_log: str) -> None:
        self._write(WarningEvent, {"message": f"log.jsonl: {about_the_log}"})
        self._tell()

    def _head(self) -> dict[str, Any]:
        time_ns, mono_ns = self._moment or (time.time_ns(), time.monotonic_ns())
        return {"ts": _timestamp(time_ns), "mono_ns": mono_ns, "seq": self._seq}

    @property
    def next_seq(self) -> int:
        """Number of the line that comes next, after those that wait."""
        self.flush()
        return self._seq

    def subscribe(
        self, subscriber: Subscriber, events: Collection[str] | None = None, columns: Columns | None = None
    ) -> Callable[[], None]:
        """Have `subscriber` called with every line as a dict, in order; returns what ends it.

        Args:
            subscriber: called from whichever thread tells the line.
            events: names of those that it is called for; None: all. Lines without a subscriber are never made as dicts.
            columns: called instead where many lines of one event come at once, with what they share and with columns of
                what they do not; such a subscriber hears of all a moment later. None: they are made as dicts.
        """
        self.flush()  # what waits happened before
        entry = (subscriber, events, columns)
        self._subscribers.append(entry)
        self._note_asked_for()
        return functools.partial(self._forget, entry)

    def _forget(self, entry: _Subscription) -> None:
        """End a subscription. May be called twice."""
        if entry in self._subscribers:
            self._subscribers.remove(entry)
            self._note_asked_for()

    def close(self) -> None:
        """Close the file, if it is ours. Lines emitted afterwards are dropped and counted."""
        self._later = None
        self.flush()
        self._sink.close(own=self._path is not None)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(
        self, kind: type[Event], values: Mapping[str, Any], role: str = "supervisor", idx: int | None = None
    ) -> bool:
        """Return whether the line is in the file."""
        line = {**self._head(), "run": self.run, "event": kind.name, "role": role, "idx": idx}
        self._line, self._sink.written = {}, True  # as it is if a processor drops the line
        self._log.msg({**line, **_defaults_of(kind), **values})
        return self._sink.written

    def _cleaned(self, _logger: Any, _method: str, line: Any) -> dict[str, Any]:
        self._seq += 1
        self._line = clean(line)
        return self._line

    def _tell(self, *, but_columns: bool = False) -> None:
        line = self._line
        for entry in tuple(self._subscribers) if line else ():
            subscriber, wanted, columns = entry
            if (wanted is None or line["event"] in wanted) and not (but_columns and columns is not None):
                self._told(entry, functools.partial(subscriber, line))

    def _told(self, entry: _Subscription, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - a subscriber must not be able to stop the run
            self._forget(entry)


def open_log(path: str | os.PathLike[str]) -> int:
    """A descriptor that appends to `path`, which is made if need be, for this user alone whatever the umask.

    Raises:
        OSError: it cannot be opened, or is something that may have to be waited for, such as a FIFO.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        expect_file(descriptor, path, or_device=True)
        os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class _Straight(structlog.BoundLoggerBase):
    """structlog's processors one after the other; its own logger costs a third more, and puts `event` last."""

    def msg(self, line: Any) -> None:
        """Log one line, given as a whole."""
        try:
            for processor in self._processors:
                line = processor(self._logger, "msg", line)
        except structlog.DropEvent:
            return
        self._logger.msg(line)


class _LineSink:
    """The far end of the logger: whole lines in one write, or none of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._gathered: list[str] | None = None
        self.shut = False
        self.written = False
        self.cause = ""

    def msg(self, line: str) -> None:
        self.written = False
        if self.shut:
            return
        if self._gathered is not None:
            self._gathered.append(line)
            self.written = True
            return
        data = line.encode("ascii") + b"\n"
        try:
            count = os.write(self._descriptor, data)
            if count < len(data):  # the disk became full in the middle of the line
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - count)
                self.cause = "no space left for a whole line"
            self.written = count == len(data)
        except OSError as error:
            self.cause = os.strerror(error.errno or 0)

    def gather(self) -> None:
        """Write nothing until `write_gathered`."""
        self._gathered = []

    def write_gathered(self) -> int:
        """Write it in one piece. Returns the number of lines if they are lost, else 0."""
        gathered, self._gathered = "\n".join(self._gathered or ()), None
        if gathered:
            self.msg(gathered)
        return gathered.count("\n") + 1 if gathered and not self.written else 0

    def follow(self, path: Path) -> None:
        """Go on in a new file if the old one is no longer at `path`."""
        try:
            there, here = path.stat(follow_symlinks=False), os.fstat(self._descriptor)
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
        except OSError:
            pass
        try:
            descriptor = open_log(path)
        except OSError:  # the folder is gone: the old file, wherever it is now, is better than none
            return
        self.close(own=True)
        self._descriptor = descriptor

    def size(self) -> int:
        """Bytes of the file so far; 0 where that cannot be told."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError:
            return 0

    def close(self, *, own: bool) -> None:
        if own and self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


_DEFAULTS: dict[type[Event], dict[str, Any]] = {}
_NEEDED: dict[type[Event], frozenset[str]] = {}


def _defaults_of(kind: type[Event]) -> dict[str, Any]:
    """The fields of an event in their order, each with its default; MISSING where it has none."""
    if kind not in _DEFAULTS:
        every = {one.name: one.default for one in fields(kind)}
        every |= {one.name: one.default_factory() for one in fields(kind) if one.default_factory is not MISSING}
        _DEFAULTS[kind], _NEEDED[kind] = every, frozenset(name for name in every if every[name] is MISSING)
    return _DEFAULTS[kind]


def _kind_and_values(event: functools.partial[_E]) -> tuple[type[Event], Mapping[str, Any]]:
    """An event's kind and its values; it is made only where these do not have all the names."""
    kind, values = cast("type[Event]", event.func), event.keywords
    names = _defaults_of(kind).keys()
    is_whole = not event.args and _NEEDED[kind] <= values.keys() <= names
    return kind, values if is_whole else vars(event())


def _timestamp(time_ns: int) -> str:
    seconds, nanoseconds = divmod(time_ns, 10**9)
    return f"{_to_the_second(seconds)}.{nanoseconds // 10**6:03}Z"


@functools.lru_cache(maxsize=4)
def _to_the_second(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat().removesuffix("+00:00")


_LEAST, _MOST, _INFINITE = -(2**63), 2**63 - 1, math.inf
_to_json = encoding(separators=(", ", ": "))


def _rendered(_logger: Any, _method: str, line: Any) -> str:
    return _to_json(line)


def clean(values: dict[str, Any]) -> dict[str, Any]:
    """The same in plain JSON types: numpy and torch numbers become numbers, NaN and infinities null, secrets go."""
    if _are_plain(values) and not _any_secret(tuple(values)):
        return values  # nearly every line: the end of an episode, a phase, a version
    return {str(key): _plain(value, 1) for key, value in redact(values).items()}


@functools.lru_cache(maxsize=256)  # there are as many as kinds of events, and of tables in them
def _any_secret(names: tuple[str, ...]) -> bool:
    return any(map(is_secret, names))


def _are_plain(values: Mapping[str, Any], *, nested: bool = False) -> bool:
    """Return whether all values may be written as they are, told by a few comparisons each, without a call for each."""
    for value in values.values():
        kind = type(value)
        if kind is int:
            if not _LEAST <= value <= _MOST:
                return False
        elif kind is float:
            if not -_INFINITE < value < _INFINITE:  # nor NaN, without a call
                return False
        elif kind is str:
            if len(value) > LONGEST_TEXT:
                return False
        elif kind is dict:
            # Losses and waits: a few names with a number each.
            names = tuple(value)
            if nested or set(map(type, names)) - {str} or _any_secret(names) or not _are_plain(value, nested=True):
                return False
        elif value is not None and kind is not bool:
            return False
    return True


def _plain(value: Any, depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    if type(value) is float:  # numbers of Python's own come first: they are nearly all there is
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "…"
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value) if value.bit_length() < 1000 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth > DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, scalars and arrays
        return _plain(value.tolist(), depth + 1)
    if isinstance(value, bytes):
        return value[:LONGEST_TEXT].hex()
    return _plain(_representation(value), depth)


def _representation(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a foreign object's own text is beyond our control
        return f"<{type(value).__name__} that cannot be shown>"
