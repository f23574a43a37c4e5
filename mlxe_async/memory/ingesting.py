"""Taking in a block of rows: one transaction, from a lane to the ring.

Rows wait in the stream's staging area (`staging`) until their segment is closed. Only then are they completed with what
the algorithm derives from a whole segment (`Deriving`) and put into the ring (`ring`). All data is written to places
computed from the counters before, and these are committed last, so a keeper that was killed half-way is followed by one
that does the same step again and gets the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mlxe_async.memory.bookkeeping import SEGMENTS, Bookkeeping
from mlxe_async.memory.moments import RunningMoments
from mlxe_async.memory.ring import RingWriter
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.memory.staging import Segments, Staging, inside
from mlxe_async.rows import Array

Derive = Callable[[dict[str, Array]], dict[str, Array]]
"""Derived columns (L, ...) of the rows of a closed segment."""
DeriveMany = Callable[[dict[str, Array], Array], dict[str, Array]]
"""Derived columns (N, ...) of several closed segments, one after the other, and the rows of each (S,)."""


class Deriving(NamedTuple):
    """How derived columns are made.

    Args:
        derive: of one segment.
        many: of several at once, the same to the last bit; None: one after the other.
    """

    derive: Derive
    many: DeriveMany | None

    def __call__(self, segments: dict[str, Array], lengths: Array) -> dict[str, Array]:
        """Derived columns (N, ...) of segments of these lengths (S,)."""
        if self.many is not None:
            return self.many(segments, lengths)
        if len(lengths) == 1:
            return self.derive(segments)
        ends = np.cumsum(lengths).tolist()
        pieces = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        answers = [self.derive({name: column[piece] for name, column in segments.items()}) for piece in pieces]
        return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}


_AT_ONCE = 1 << 16
_BYTES_AT_ONCE = 1 << 20  # of rows that are completed together: they stay in the caches


@dataclass
class Ingested:
    """What taking in a block of rows did."""

    rows: int = 0
    segments: int = 0
    dropped: int = 0


class Ingester:
    """The keeper's way in.

    Args:
        shape: the memory's sizes.
        books: the memory's counters, committed here after each block.
        staging: where rows wait.
        ring: where completed rows go.
    """

    def __init__(self, shape: ReplayShape, books: Bookkeeping, staging: Staging, ring: RingWriter) -> None:
        self._books, self._staging, self.ring = books, staging, ring
        self._moments = RunningMoments(books, shape.envs) if shape.moments else None
        self._most_kept = min(shape.keep_rows, shape.stream_rows)
        # Frames are laid out one segment after the other: each depends on what became of the one before.
        self._together = 0 if shape.frames else max(1, min(_AT_ONCE, _BYTES_AT_ONCE // ring.row_bytes))

    def ingest(
        self,
        lane: int,
        sequence: int,
        epoch: int,
        rows: Mapping[str, Array],
        deriving: Deriving,
        *,
        drop_open: bool,
        alike: bool,
    ) -> Ingested:
        """Take in one block; see `ReplayMemory.ingest`."""
        done, books = Ingested(), self._books
        if epoch != int(books.epoch[lane]):
            if alike and len(rows["env"]):
                books.again[lane] = books.partial[lane]
            elif drop_open:
                done.dropped += self._forget(lane)
                books.partial[lane] = books.again[lane] = 0
            else:
                done.segments += self._close(lane, deriving)
            books.epoch[lane] = epoch
        if alike:
            rows = self._new(lane, rows)
        done.rows = len(rows["env"])
        if done.rows:
            done.segments += self._append(lane, rows, deriving)
        self._advance(lane, sequence, done)
        return done

    def set_aside(self, lane: int, sequence: int, deriving: Deriving) -> None:
        """Pass over a block that failed its checks; see `ReplayMemory.set_aside`."""
        done = Ingested(segments=self._close(lane, deriving))
        self._books.corrupt[lane] += 1
        self._books.partial[lane] = self._books.again[lane] = 0
        self._advance(lane, sequence, done)

    def _new(self, lane: int, rows: Mapping[str, Array]) -> Mapping[str, Array]:
        """Of the rows of a block those that did not come before, from an executor that died before it delivered."""
        books, count = self._books, len(rows["env"])
        known = min(count, int(books.again[lane]))
        books.again[lane] -= known
        is_delivered = count and rows["last"][-1]
        books.partial[lane] = 0 if is_delivered else books.partial[lane] + count - known
        return {name: column[known:] for name, column in rows.items()} if known else rows

    def _append(self, lane: int, rows: Mapping[str, Array], deriving: Deriving) -> int:
        new = self._staging.append(lane, rows)
        if self._moments is not None:
            self._moments.add(lane, new, rows["obs"])
        return self._complete(new.segments, deriving)

    def _close(self, lane: int, deriving: Deriving) -> int:
        if self._moments is not None:
            self._moments.close(lane)
        return self._complete(self._staging.close(lane), deriving)

    def _forget(self, lane: int) -> int:
        if self._moments is not None:
            self._moments.forget(lane)
        return self._staging.forget(lane)

    def _advance(self, lane: int, sequence: int, done: Ingested) -> None:
        books = self._books
        books.position[lane] = np.uint64((sequence + 1) % 2**64).astype(np.int64)
        books.rows[lane] += done.rows
        books.dropped[lane] += done.dropped
        books.whole[SEGMENTS] += done.segments
        books.store()

    def _complete(self, closed: Segments, deriving: Deriving) -> int:
        """Complete closed segments and move their last rows into the ring. Returns how many these are."""
        kept = np.minimum(closed.length, self._most_kept)
        until, start = np.cumsum(kept), 0
        while start < len(kept):
            most = self._together + (int(until[start - 1]) if start else 0)
            stop = max(start + 1, int(until.searchsorted(most, side="right")))
            some = slice(start, stop)
            self._keep(closed.stream[some], closed.end[some] - kept[some], kept[some], deriving)
            start = stop
        return len(kept)

    def _keep(self, stream: Array, first: Array, kept: Array, deriving: Deriving) -> None:
        """Complete segments (S,), `kept` rows each from row `first` of their streams on, and put them in."""
        which, ahead = inside(kept)
        segments = self._staging.copied(stream, first, which, ahead)
        segments |= deriving(segments, kept)
        self.ring.write(stream, first, kept, which, ahead, segments)
