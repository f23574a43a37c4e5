"""Sizes of a replay memory, known before a run begins: which bytes hold what, and columns in rows of whole words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mlxe_async.memory.committed import Committed
from mlxe_async.memory.frames import MOST, FrameRing
from mlxe_async.memory.sum_tree import SumTree
from mlxe_async.rows import Array, Column, RowLayout

WORD = 8


class PackedRows:
    """Where the columns of a layout lie inside a row of 8-byte words.

    Args:
        layout: the columns; wide items come first, so that each is aligned.
    """

    def __init__(self, layout: RowLayout) -> None:
        ordered = sorted(layout.columns, key=lambda column: -np.dtype(column.dtype).itemsize)
        self._columns: list[tuple[Column, slice]] = []
        offset = 0
        for column in ordered:
            end = offset + column.row_bytes
            self._columns.append((column, slice(offset, end)))
            offset = end
        self.words = max(1, -(-offset // WORD))

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column, _ in self._columns]

    def nbytes(self, rows: int) -> int:
        """Bytes of `rows` rows."""
        return WORD * self.words * rows

    def rows(self, buffer: Any, rows: int, offset: int = 0) -> Array:
        """The rows as words (rows, words), a view on `buffer`."""
        return np.frombuffer(buffer, np.uint64, rows * self.words, offset).reshape(rows, self.words)

    def views(self, rows: Array) -> dict[str, Array]:
        """Columns by name, (..., *shape), as views on rows of words (..., words)."""
        base = rows.view(np.uint8)
        return {
            column.name: base[..., where].view(column.dtype).reshape((*rows.shape[:-1], *column.shape))
            for column, where in self._columns
        }


STREAM_WORDS = ("staged", "opened", "head", "last_episode", "last_step")
LANE_WORDS = ("position", "epoch", "rows", "dropped", "corrupt", "partial", "again")
WHOLE_WORDS = (
    "stamps", "segments", "plans", "phases", "phase_segments", "phase_rows", "owed", "largest", "asked", "drawn",
    "drawn_rows", "settled",
)  # fmt: skip
# Of streams whose observations are stacks of frames: see `frames`.
FRAME_WORDS = ("tail", "frames", "framed", "stack")
PLAN_SLOTS = 2
REFERENCE = ".frames"
INITIAL = "initial_priority"
"""The derived column that says which priority a row has when it comes; where there is none it is the largest."""


@dataclass(frozen=True)
class ReplayShape:
    """Sizes of a replay memory; all processes that map it agree on one of these.

    Args:
        lanes: number of executors.
        envs: environments per executor.
        stream_rows: rows kept per environment of an executor.
        keep_rows: rows kept of one segment, counted from its end.
        block_rows: most rows in one block of a lane.
        batch_rows: most rows of one minibatch.
        plan_updates: most minibatches in one plan.
        columns: the rows' columns, as JSON.
        derived: the columns computed when a segment is closed, as JSON.
        prioritised: whether rows are drawn by the priorities that updates left.
        frames: number of frames stacked in an observation (frames, ...), each of which is stored once; 0: no stacks.
        largest_decay: factor of the largest priority for each plan of updates; 1: it never falls.
        moments: entries of an observation whose running mean and variance are kept (see `moments`); 0: they are not.
        plan_slots: plans that may be learned from at once; they take turns, or each lane has its own.

    Raises:
        ValueError: `frames` is not the first length of the observations.
    """

    lanes: int
    envs: int
    stream_rows: int
    keep_rows: int
    block_rows: int
    batch_rows: int
    plan_updates: int
    columns: list[dict[str, Any]]
    derived: list[dict[str, Any]]
    prioritised: bool = True
    frames: int = 0
    moments: int = 0
    largest_decay: float = 1.0
    plan_slots: int = PLAN_SLOTS

    def __post_init__(self) -> None:
        shape = self._observation.shape if self.frames else (0,)
        if shape[:1] != (self.frames,) or self.frames > MOST:
            raise ValueError(f"stacks of {self.frames} frames: expected observations ({self.frames}, ...), got {shape}")

    @cached_property
    def _observation(self) -> Column:
        return next(column for column in self.row_layout.columns if column.name == "obs")

    @cached_property
    def stacked(self) -> tuple[str, ...]:
        """Names of the columns that are stacks of frames, `obs` and `next_obs` first."""
        if not self.frames:
            return ()
        one = self._observation
        every = RowLayout.from_json(self.columns + self.derived).columns
        names = (column.name for column in every if (column.dtype, column.shape) == (one.dtype, one.shape))
        return ("obs", "next_obs", *(name for name in names if name not in ("obs", "next_obs")))

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return self._observation.row_bytes // self.frames

    @property
    def frame_rows(self) -> int:
        """Frames kept of one stream.

        One for each row and one more for each episode, if these have 8 rows or more in a small memory, 32 in a stream
        of 8192 rows or more; of shorter episodes fewer rows are kept, 3 % fewer with 16 rows in place of 32.
        """
        more = max(self.stream_rows // 32, min(self.stream_rows // 8, 256))
        return self.stream_rows + more + 2 * self.frames

    @property
    def frame(self) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape of one frame."""
        return self._observation.dtype, self._observation.shape[1:]

    def frame_ring(self, buffer: Any) -> FrameRing | None:
        """The frames, on the segment's bytes; None where observations are no stacks."""
        if not self.frames:
            return None
        where = self.offset("frames")
        return FrameRing(buffer, where, self.streams, self.frame_rows, self.frames, self.frame_bytes)

    @property
    def streams(self) -> int:
        """Number of streams."""
        return self.lanes * self.envs

    @property
    def capacity(self) -> int:
        """Rows that can be kept."""
        return self.streams * self.stream_rows

    @property
    def row_layout(self) -> RowLayout:
        """Columns of a row as it comes from a lane."""
        return RowLayout.from_json(self.columns)

    @cached_property
    def payload(self) -> PackedRows:
        """Columns of a row as they are gathered, derived ones included; of stacks the references, `NAME.frames`."""
        columns = RowLayout.from_json(self.columns + self.derived).columns
        plain = [column for column in columns if column.name not in self.stacked]
        return PackedRows(RowLayout((*plain, *(Column(name + REFERENCE, "<i8") for name in self.stacked))))

    @property
    def keeping_layout(self) -> RowLayout:
        """What is noted of each row in the ring.

        `left` is the number of rows to the end of its segment, itself included; `born` the learning phase it came for.
        """
        return RowLayout(
            (
                Column("stamp", "<i8", fill=0),
                Column("left", "<i4", fill=0),
                Column("born", "<i8", fill=0),
                Column("priority", "<f4", fill=0),
            )
        )

    def ring(self, buffer: Any) -> dict[str, Array]:
        """All columns of the ring by name (capacity, ...), as views on the segment's bytes."""
        payload = self.payload
        rows = payload.rows(buffer, self.capacity, self.offset("ring"))
        keeping = self.keeping_layout.views(buffer, self.capacity, self.offset("keeping"))
        return payload.views(rows) | keeping

    @property
    def plan_layout(self) -> RowLayout:
        """Columns of one plan: a row per minibatch."""
        wide = (self.batch_rows,)
        return RowLayout(
            (
                Column("index", "<i8", wide),
                Column("stamp", "<i8", wide),
                Column("weight", "<f4", wide),
                Column("priority", "<f4", wide),
            )
        )

    def parts(self) -> list[tuple[str, int]]:
        """Name and bytes of each part of the segment, in order."""
        staging_rows = self.streams * self.staging_rows
        return [
            ("bookkeeping", page(Committed.nbytes(self.state_words))),
            ("staging", page(self.row_layout.nbytes(staging_rows))),
            ("ring", page(self.payload.nbytes(self.capacity))),
            *([("frames", page(self._frames_nbytes))] if self.frames else []),
            ("keeping", page(self.keeping_layout.nbytes(self.capacity))),
            *([("tree", page(SumTree.nbytes(self.capacity)))] if self.prioritised else []),
            ("plans", self.plan_slots * page(self.plan_layout.nbytes(self.plan_updates))),
            *([("moments", page(self.plan_slots * self.moment_words * 8))] if self.moments else []),
        ]

    @property
    def _frames_nbytes(self) -> int:
        return FrameRing.nbytes(self.streams, self.frame_rows, self.frame_bytes)

    @property
    def staging_rows(self) -> int:
        """Rows of a stream's staging area; the one before a segment is still there when its frames are laid out."""
        return self.keep_rows + self.block_rows + (1 if self.frames else 0)

    def offset(self, part: str) -> int:
        """Return where a part begins in the segment."""
        return self._offsets[part]

    @cached_property
    def _offsets(self) -> dict[str, int]:
        offsets, offset = {}, 0
        for name, size in self.parts():
            offsets[name] = offset
            offset += size
        return offsets

    @property
    def stream_words(self) -> tuple[str, ...]:
        """Names of the counters of each stream."""
        return (*STREAM_WORDS, *FRAME_WORDS) if self.frames else STREAM_WORDS

    @property
    def state_words(self) -> int:
        """Number of int64 counters."""
        counters = len(WHOLE_WORDS) + len(LANE_WORDS) * self.lanes + len(self.stream_words) * self.streams
        return counters + self.moment_words * self.moment_sets

    @property
    def moment_words(self) -> int:
        """Numbers of one set of moments; 0 where none are kept."""
        return 1 + 2 * self.moments if self.moments else 0

    @property
    def moment_sets(self) -> int:
        """Sets of moments: of what came before, of each lane, of each stream."""
        return 1 + self.lanes + self.streams

    @property
    def nbytes(self) -> int:
        """Bytes of the whole segment."""
        return sum(size for _, size in self.parts())

    def to_json(self) -> dict[str, Any]:
        """The shape as plain JSON types."""
        shape = asdict(self)
        if not self.moments:
            del shape["moments"]  # as in checkpoints that were made before there were any
        if self.plan_slots == PLAN_SLOTS:
            del shape["plan_slots"]  # likewise
        return shape


def page(nbytes: int) -> int:
    """Round `nbytes` up to whole pages."""
    return -(-nbytes // 4096) * 4096
