"""Rows that wait: each stream's newest ones, until the stretch they belong to is closed.

A stream's staging area is a ring as well, so wide that of any stretch that a block closes, the last rows that are kept
are still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlxe_async.memory.bookkeeping import Bookkeeping
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.memory.stretches import Arrived, Counters, Stretches, arrived, by_environment, compact
from mlxe_async.rows import Array


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
                return Arrived(order, order, order, order, order, Stretches(order, order, order))
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
        books.opened[new.stretches.stream] = new.stretches.end
        return new

    def close(self, lane: int) -> Stretches:
        """Close what is open in the streams of a lane."""
        staged, opened = self._books.staged, self._books.opened
        streams = np.arange(lane * self._envs, (lane + 1) * self._envs)
        length = staged[streams] - opened[streams]
        streams, length = streams[length > 0], length[length > 0]
        opened[streams] = staged[streams]
        return Stretches(streams, staged[streams], length)

    def forget(self, lane: int) -> int:
        """Forget what is open in the streams of a lane. Returns how many rows that were."""
        staged, opened = self._books.staged, self._books.opened
        streams = slice(lane * self._envs, (lane + 1) * self._envs)
        dropped = int((staged[streams] - opened[streams]).sum())
        opened[streams] = staged[streams]
        return dropped

    def copied(self, stream: Array, first: Array, which: Array, ahead: Array) -> dict[str, Array]:
        """Copies of the rows (N, ...) of stretches (S,), which begin with row `first` of their streams.

        Args:
            stream: whose stretch (S,).
            first: number of its first row (S,).
            which: of each row the stretch (N,).
            ahead: how far it is ahead of that stretch's first row (N,).
        """
        where = (first % self._wide)[which] + ahead
        where -= np.where(where >= self._wide, self._wide, 0)
        where += (stream * self._wide)[which]
        there = compact(where) if len(first) == 1 else where
        if isinstance(there, slice):
            return {name: column[there].copy() for name, column in self._columns.items()}
        return {name: column.take(there, axis=0) for name, column in self._columns.items()}

    def value(self, name: str, stream: int, number: int) -> Array:
        """What one row of a stream has in a column (...), as a view."""
        value: Array = self._columns[name][stream * self._wide + number % self._wide]
        return value
