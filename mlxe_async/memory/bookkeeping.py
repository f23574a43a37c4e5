"""The counters of a replay memory by their names, and which rows of the ring are there by what these say.

All counters lie in one vector that changes at once or not at all (see `committed`). Each part of a step of the
memory changes them here; the step counts from `store` on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxe_async.memory.committed import Committed
from mlxe_async.memory.shape import LANE_WORDS, STREAM_WORDS, WHOLE_WORDS, ReplayShape
from mlxe_async.rows import Array

STAMPS, SEGMENTS, PLANS, PHASES, PHASE_SEGMENTS, PHASE_ROWS, OWED, LARGEST, ASKED, DRAWN, DRAWN_ROWS, SETTLED = range(
    len(WHOLE_WORDS)
)
"""Places of the counters that the memory has once. `ASKED` to `DRAWN_ROWS` tell of the plan that was drawn last,
`SETTLED` is the number of the one that was settled last, and 1."""


class Bookkeeping:
    """A private copy of the counters, as they were last committed and as they changed since.

    Args:
        shape: the memory's sizes.
        buffer: the shared bytes.
        formatted: whether `format_memory` was called when they were made; if so, zeros are damage.

    Raises:
        CorruptRecord: neither copy in the shared bytes passes its checksum.
    """

    def __init__(self, shape: ReplayShape, buffer: Any, *, formatted: bool = False) -> None:
        self._shape = shape
        self.committed = Committed(buffer, 0, shape.state_words, formatted=formatted)
        self.load()

    def load(self) -> None:
        """Take up the counters as they were last committed.

        Raises:
            CorruptRecord: neither copy passes its checksum.
        """
        shape, self._state = self._shape, self.committed.load()
        whole, lanes = len(WHOLE_WORDS), len(LANE_WORDS) * shape.lanes
        self.whole = self._state[:whole]
        by_lane = self._state[whole : whole + lanes].reshape(len(LANE_WORDS), shape.lanes)
        streams = len(shape.stream_words) * shape.streams
        by_stream = self._state[whole + lanes :][:streams].reshape(-1, shape.streams)
        self.position, self.epoch, self.rows, self.dropped, self.corrupt, self.partial, self.again = by_lane
        self.staged, self.opened, self.head, self.last_episode, self.last_step = by_stream[: len(STREAM_WORDS)]
        if shape.frames:
            self.tail_word, self.frame_head, self.framed, self.stack = by_stream[len(STREAM_WORDS) :]
        self.moments = self._state[whole + lanes + streams :].view(np.float64).reshape(-1, shape.moment_words or 1)
        self.moments_closed, self.moments_open = self.moments[1 : 1 + shape.lanes], self.moments[1 + shape.lanes :]

    def store(self) -> None:
        """Commit all counters as they are now."""
        self.committed.store(self._state)

    @property
    def tail(self) -> Array:
        """Rows (streams,) that gave way to newer ones."""
        return np.asarray(self.tail_word if self._shape.frames else np.maximum(self.head - self._shape.stream_rows, 0))

    @property
    def held(self) -> Array:
        """Rows (streams,) that can be drawn."""
        return np.asarray(self.head - self.tail)

    @property
    def live_rows(self) -> int:
        """Rows that can be drawn, of all streams."""
        return int(self.held.sum())

    def positions_of(self, lane: int) -> tuple[int, int]:
        """Return where the rows of a lane begin and end among all that can be drawn."""
        each = self._shape.streams // self._shape.lanes
        ends = np.concatenate(([0], np.cumsum(self.held)))
        return int(ends[lane * each]), int(ends[(lane + 1) * each])

    def places(self, positions: Array) -> Array:
        """Return where in the ring the rows are that come at these positions (n,) among all that can be drawn."""
        tail, held, size = self.tail, self.held, self._shape.stream_rows
        if (held[:-1] == size).all() and (held[-1] == size or not tail[-1]):
            return positions
        ends = np.cumsum(held)
        stream = ends.searchsorted(positions, side="right")
        turned = np.where(held == size, 0, tail)
        return np.asarray(stream * size + (positions - (ends - held)[stream] + turned[stream]) % size)

    def live(self) -> Array:
        """Return where in the ring all rows are that can be drawn."""
        return self.places(np.arange(self.live_rows))

    def ledger(self) -> list[dict[str, int]]:
        """Per lane, as committed: blocks and rows taken in, rows that were dropped, blocks set aside.

        Raises:
            CorruptRecord: neither copy passes its checksum.
        """
        state = self.committed.load()
        lanes = state[len(WHOLE_WORDS) :][: len(LANE_WORDS) * self._shape.lanes].reshape(len(LANE_WORDS), -1)
        return [
            {"position": int(p) % 2**64, "rows": int(r), "dropped": int(d), "corrupt": int(c)}
            for p, _, r, d, c, *_ in lanes.T
        ]
