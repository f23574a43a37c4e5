"""The ring of finished rows: where completed segments are written, and what gives way to them.

Every stream has its own part, in which the oldest rows give way. A row is without its stamp from before the first of
its bytes changes until after the last one did, so that no reader takes half a row for a whole one (see `fences`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlxe_async.fences import fence
from mlxe_async.memory.bookkeeping import PHASES, STAMPS, Bookkeeping
from mlxe_async.memory.frames import FrameRing, oldest_frame
from mlxe_async.memory.priorities import Priorities
from mlxe_async.memory.shape import INITIAL, REFERENCE, ReplayShape
from mlxe_async.memory.staging import Staging, compact
from mlxe_async.rows import Array

# Rows of more words are put into the ring column by column: putting them together first would be one copy more.
_PACKED_WORDS = 128


class RingWriter:
    """Writes completed segments into the ring. What it changes in the bookkeeping is not committed here.

    Args:
        shape: the memory's sizes.
        buffer: the shared bytes.
        ring: the ring's columns by name, of the same bytes.
        books: the memory's counters.
        priorities: are told which rows are new and which are gone.
        staging: where the row before a segment is looked up.
    """

    def __init__(
        self,
        shape: ReplayShape,
        buffer: Any,
        ring: dict[str, Array],
        books: Bookkeeping,
        priorities: Priorities,
        staging: Staging,
    ) -> None:
        self._shape, self._ring, self._books, self._priorities = shape, ring, books, priorities
        self._staging = staging
        self.frames = shape.frame_ring(buffer)
        self._rows = shape.payload.rows(buffer, shape.capacity, shape.offset("ring"))
        self._plain = tuple(c["name"] for c in shape.columns + shape.derived if c["name"] not in shape.stacked)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self._rows.strides[0]

    def write(
        self, stream: Array, first: Array, kept: Array, which: Array, ahead: Array, segments: Mapping[str, Array]
    ) -> None:
        """Put in completed segments (S,) of N rows, one after the other; of a memory with frames only one, S = 1.

        Args:
            stream: whose segment (S,), ascending.
            first: number in its stream of its first row (S,).
            kept: its rows (S,).
            which: of each row the segment (N,).
            ahead: how far it is ahead of that segment's first row (N,).
            segments: all columns (N, ...), derived ones included.
        """
        books, ring, size, count = self._books, self._ring, self._shape.stream_rows, len(which)
        head = self._heads(stream, kept)
        to = (head % size)[which] + ahead
        to -= np.where(to >= size, size, 0)
        to += (stream * size)[which]
        ring["stamp"][to] = 0
        fence()
        columns, lost = {name: segments[name] for name in self._plain}, 0
        if self.frames is not None:
            stacks = {name: segments[name] for name in self._shape.stacked}
            references, lost = self._store_frames(self.frames, int(stream[0]), int(first[0]), stacks)
            columns |= references
        left, stamps = kept[which] - ahead, int(books.whole[STAMPS]) + 1 + np.arange(count)
        books.head[stream] = head + kept
        books.whole[STAMPS] += count
        if len(kept) > 1:
            is_kept = head[which] + ahead >= (books.head[stream] - size)[which]
            if not is_kept.all():  # more came of a stream than its part of the ring holds
                to, left, stamps = to[is_kept], left[is_kept], stamps[is_kept]
                columns = {name: column[is_kept] for name, column in columns.items()}
        there = compact(to) if len(kept) == 1 else to
        self._put(there, columns)
        ring["left"][there] = left
        ring["born"][there] = int(books.whole[PHASES]) + 1
        stamps[:lost] = 0
        self._priorities.insert(to, there, lost, columns.get(INITIAL))
        fence()
        ring["stamp"][there] = stamps

    def _heads(self, stream: Array, kept: Array) -> Array:
        """How many rows were in the streams (S,), ascending, before each of the segments with `kept` rows (S,)."""
        if len(stream) == 1:
            return np.asarray(self._books.head[stream])
        before = np.cumsum(kept) - kept
        return np.asarray(self._books.head[stream] + before - before[stream.searchsorted(stream)])

    def _put(self, to: Array | slice, columns: Mapping[str, Array]) -> None:
        """Put columns (N, ...) of all names into these rows (N,) of the ring, which have no stamp now."""
        if isinstance(to, slice) or self._rows.shape[1] > _PACKED_WORDS:
            for name, column in columns.items():
                self._ring[name][to] = column
            return
        packed = np.zeros((len(to), self._rows.shape[1]), np.uint64)
        for name, view in self._shape.payload.views(packed).items():
            view[...] = columns[name]
        self._rows[to] = packed

    def _store_frames(
        self, frames: FrameRing, stream: int, first: int, stacks: Mapping[str, Array]
    ) -> tuple[dict[str, Array], int]:
        """Store the frames of a segment that begins at row `first` of its stream; rows that lose theirs go.

        Returns:
            The references by column, and how many of the segment's own first rows there was no room for.
        """
        books = self._books
        head, size, kept = int(books.head[stream]), self._shape.stream_rows, len(stacks["obs"])
        follows = books.stack[stream] > 0 and first == books.framed[stream]
        # As bytes: what is no number equals itself too.
        if follows and self._staging.value("next_obs", stream, first - 1).tobytes() == stacks["obs"][0].tobytes():
            last = int(books.stack[stream]) - 1
        else:
            last = None
        layout = frames.lay_out(int(books.frame_head[stream]), last, stacks)
        references, oldest = layout.references["obs"], layout.head - frames.rows
        lost = int(np.searchsorted(oldest_frame(references), oldest))
        tail = max(int(books.tail_word[stream]), head + kept - size)
        known, rows = self._ring["obs" + REFERENCE], range(tail, head)
        gone = bisect_left(rows, oldest, key=lambda row: int(oldest_frame(int(known[stream * size + row % size]))))
        if gone:
            where = stream * size + np.arange(tail, tail + gone) % size
            self._ring["stamp"][where] = 0
            fence()
            self._priorities.remove(where)
        frames.write(stream, layout)
        books.tail_word[stream] = tail + gone + lost
        books.frame_head[stream], books.framed[stream] = layout.head, first + kept
        books.stack[stream] = 0 if layout.last is None else layout.last + 1
        return {name + REFERENCE: column for name, column in layout.references.items()}, lost
