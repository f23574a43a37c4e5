"""Rows that wait: each stream's newest ones, until the segment they belong to is closed; and what a block closes.

A stream's staging area is a ring as well, so wide that of any segment that a block closes, the last rows that are kept
are still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mlxe_async.memory.bookkeeping import Bookkeeping
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Array

_INT16_MAX = np.iinfo(np.int16).max


class Counters(NamedTuple):
    """What is known of each stream (streams,) before a block; rows of a stream are numbered from 0 for ever.

    Args:
        staged: rows that came.
        opened: number of the first row of the segment that is open; `staged` where none is.
        last_episode: episode of the row that came last.
        last_step: step of that row.
    """

    staged: Array
    opened: Array
    last_episode: Array
    last_step: Array


class Segments(NamedTuple):
    """Closed segments (S,), stream after stream, the older ones of a stream first.

    Args:
        stream: whose.
        end: number of the row after the last one.
        length: rows, at least 1.
    """

    stream: Array
    end: Array
    length: Array


class Arrived(NamedTuple):
    """A block's rows (n,) in the order of their streams.

    Args:
        order: which of the block's rows each is; None: all as they came.
        stream: whose.
        number: its number in its stream.
        streams: those that have rows (k,).
        last: where the last row of each (k,) is.
        segments: what the block closes.
    """

    order: Array | None
    stream: Array
    number: Array
    streams: Array
    last: Array
    segments: Segments


def by_environment(env: Array, envs: int) -> Array:
    """Which rows (n,) of a block belong to environments 0 to `envs` - 1, ordered by these, each in order of time."""
    is_known = (env >= 0) & (env < envs)
    known = None if is_known.all() else np.flatnonzero(is_known)
    # So narrow, numbers are sorted digit by digit.
    keys = (env if known is None else env[known]).astype(np.int16 if envs <= _INT16_MAX else env.dtype)
    order = np.argsort(keys, kind="stable")
    return order if known is None else known[order]


def arrived(
    stream: Array, order: Array | None, episode: Array, step: Array, ends: Array, counters: Counters
) -> Arrived:
    """Number a block's rows and find what they close.

    A segment is closed after a row that ends it, and before a row that does not follow on.

    Args:
        stream: whose rows these are (n,), n > 0, ascending; all further arguments are in this order.
        order: as told in the answer.
        episode: of each row (n,).
        step: of each row (n,).
        ends: whether a row ends its segment (n,).
        counters: what is known of all streams.
    """
    n = len(stream)
    if stream[0] == stream[-1]:
        who, staged_before = stream[:1], int(counters.staged[stream[0]])
        goes_on = episode[0] == counters.last_episode[who[0]] and step[0] == counters.last_step[who[0]] + 1
        is_one = not ends[:-1].any() and (episode == episode[0]).all() and (step - step[0] == np.arange(n)).all()
        if is_one and (goes_on or counters.opened[who[0]] == staged_before):
            end, last_row = np.array([staged_before + n]), np.array([n - 1])
            number, closed = np.arange(staged_before, staged_before + n), slice(0, int(ends[-1]))
            begin = counters.opened[who] if goes_on else number[:1]
            return Arrived(
                order, stream, number, who, last_row, Segments(who[closed], end[closed], (end - begin)[closed])
            )
    is_first = np.ones(n + 1, bool)  # of its stream in this block; what would come after the last row is, too
    np.not_equal(stream[1:], stream[:-1], out=is_first[1:n])
    first = np.flatnonzero(is_first)
    streams, counts, first = stream[first[:-1]], np.diff(first), first[:-1]
    follows = np.empty(n, bool)
    follows[1:] = (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
    follows[first] = (episode[first] == counters.last_episode[streams]) & (
        step[first] == counters.last_step[streams] + 1
    )
    begins = ~follows
    begins |= is_first[:n]
    begins[1:] |= ends[:-1]
    staged, opened = counters.staged[streams], counters.opened[streams]
    number = np.arange(n) + np.repeat(staged - first, counts)
    begin = np.flatnonzero(begins)
    last = np.append(begin[1:], n) - 1
    is_closed = ends[last] | ~is_first[last + 1]
    begin, last = begin[is_closed], last[is_closed]
    end = number[last] + 1
    goes_on = is_first[begin] & follows[begin]
    length = end - np.where(goes_on, counters.opened[stream[begin]], number[begin])
    segments = Segments(stream[last], end, length)
    is_broken = ~follows[first] & (staged > opened)
    if is_broken.any():
        before = Segments(streams[is_broken], staged[is_broken], (staged - opened)[is_broken])
        every = [np.concatenate(pair) for pair in zip(segments, before, strict=True)]
        sequence = np.lexsort((every[1], every[0]))
        segments = Segments(*(column[sequence] for column in every))
    return Arrived(order, stream, number, streams, first + counts - 1, segments)


def inside(lengths: Array) -> tuple[Array, Array]:
    """Of pieces (S,) laid one after the other: the piece of each entry (N,), and its place in that piece (N,)."""
    which = np.repeat(np.arange(len(lengths)), lengths)
    return which, np.arange(len(which)) - (np.cumsum(lengths) - lengths)[which]


def compact(index: Array) -> Array | slice:
    """An ascending or turning index (n,) of one segment; as a slice, which is cheaper, where it does not turn round."""
    if len(index) and int(index[-1] - index[0]) == len(index) - 1:
        return slice(int(index[0]), int(index[0]) + len(index))
    return index


class Staging:
    """The staging areas of all streams. What it changes in the bookkeeping is not committed here.

    Args:
        shape: the memory's sizes.
        buffer: the shared bytes.
        books: the memory's counters.
    """

    def __init__(self, shape: ReplayShape, buffer: Any, books: Bookkeeping) -> None:
        self._envs, self._wide, self._books = shape.envs, shape.staging_rows, books
        self._columns = shape.row_layout.views(buffer, shape.streams * self._wide, shape.offset("staging"))

    def append(self, lane: int, rows: Mapping[str, Array]) -> Arrived:
        """Append the rows (n, ...) of a block, n > 0, to their streams; tells where they went and what they close."""
        books, envs, order = self._books, self._envs, None
        if envs == 1:
            stream = np.full(len(rows["env"]), lane)
        else:
            order = by_environment(rows["env"], envs)
            if not len(order):
                return Arrived(order, order, order, order, order, Segments(order, order, order))
            stream = lane * envs + rows["env"][order].astype(np.int64)
        ends = (rows["terminated"] | rows["truncated"] | rows["cut"]).astype(bool)
        episode, step = rows["episode"].astype(np.int64), rows["step"].astype(np.int64)
        if order is not None:
            ends, episode, step = ends[order], episode[order], step[order]
        counters = Counters(books.staged, books.opened, books.last_episode, books.last_step)
        new = arrived(stream, order, episode, step, ends, counters)
        where = stream * self._wide + new.number % self._wide
        there = compact(where) if envs == 1 else where
        for name, column in self._columns.items():
            column[there] = rows[name] if order is None else rows[name].take(order, axis=0)
        books.staged[new.streams] = new.number[new.last] + 1
        books.last_episode[new.streams], books.last_step[new.streams] = episode[new.last], step[new.last]
        books.opened[new.segments.stream] = new.segments.end
        return new

    def close(self, lane: int) -> Segments:
        """Close what is open in the streams of a lane."""
        staged, opened = self._books.staged, self._books.opened
        streams = np.arange(lane * self._envs, (lane + 1) * self._envs)
        length = staged[streams] - opened[streams]
        streams, length = streams[length > 0], length[length > 0]
        opened[streams] = staged[streams]
        return Segments(streams, staged[streams], length)

    def forget(self, lane: int) -> int:
        """Forget what is open in the streams of a lane. Returns how many rows that were."""
        staged, opened = self._books.staged, self._books.opened
        streams = slice(lane * self._envs, (lane + 1) * self._envs)
        dropped = int((staged[streams] - opened[streams]).sum())
        opened[streams] = staged[streams]
        return dropped

    def copied(self, stream: Array, first: Array, which: Array, ahead: Array) -> dict[str, Array]:
        """Copies of the rows (N, ...) of segments (S,), which begin with row `first` of their streams.

        Args:
            stream: whose segment (S,).
            first: number of its first row (S,).
            which: of each row the segment (N,).
            ahead: how far it is ahead of that segment's first row (N,).
        """
        where = (first % self._wide)[which] + ahead
        where -= np.where(where >= self._wide, self._wide, 0)
        where += (stream * self._wide)[which]
        there = compact(where) if len(first) == 1 else where
        if isinstance(there, slice):
            return {name: column[there].copy() for name, column in self._columns.items()}
        return {name: column.take(there, axis=0) for name, column in self._columns.items()}

    def value(self, name: str, stream: int, number: int) -> Array:
        """Return what one row of a stream has in a column (...), as a view."""
        value: Array = self._columns[name][stream * self._wide + number % self._wide]
        return value
