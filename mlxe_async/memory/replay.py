"""Replay memory: finished stretches of episodes, kept in shared memory and drawn from again and again.

Rows arrive in the order of each *stream* (one environment of one executor). They wait in the stream's staging area
until their stretch is closed, by the end of the episode, by a cut, or because the next row does not follow on. Only
then are they completed with what the algorithm derives from a whole stretch (returns, say) and copied into the stream's
part of the ring, where the oldest rows give way. Because every stream has its own part, what the memory holds does not
depend on which executor was faster.

Taking in one block of rows is one transaction: all counters move together (see `committed`), all data is written to
places computed from the counters before, so a keeper that was killed half-way is followed by one that does the same
step again and gets the same result. Each row in the ring carries a *stamp*, unique for ever; a batch names rows by
index and stamp, so that a row that was overwritten meanwhile is noticed and neither learned from nor given a priority.

Time is counted in learning phases: one begins with the first draw after new stretches were closed. Each row bears the
number of the phase it came in for (`born`), which follows from the committed counters like everything else, so that a
successor gives every row the age its predecessor would have given it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mlxe_async.memory.committed import Committed, part_views
from mlxe_async.memory.drawing import draw_evenly, draw_shares
from mlxe_async.memory.packed import WORD, PackedRows
from mlxe_async.memory.sum_tree import SumTree
from mlxe_async.rows import Array, Column, RowLayout

Derive = Callable[[dict[str, Array]], dict[str, Array]]

_STREAM_WORDS = ("staged", "opened", "head", "last_episode", "last_step")
_LANE_WORDS = ("position", "epoch", "rows", "dropped", "corrupt")
_WHOLE_WORDS = ("stamps", "segments", "plans", "phases", "phase_segments", "phase_rows", "owed", "largest")
_SEGMENTS, _PLANS, _PHASES, _PHASE_SEGMENTS, _PHASE_ROWS, _OWED, _LARGEST = range(1, len(_WHOLE_WORDS))
PLAN_SLOTS = 2
_AT_ONCE = 1 << 16
# Bytes of minibatches that are gathered in one go: few calls, and still near when they are learned from.
_GATHERED_TOGETHER = 1 << 19


@dataclass(frozen=True)
class ReplayShape:
    """Sizes of a replay memory; all processes that map it agree on one of these.

    Args:
        lanes: number of executors.
        envs: environments per executor.
        stream_rows: rows kept per environment of an executor.
        keep_rows: rows kept of one stretch, counted from its end.
        chunk_rows: most rows in one block of a lane.
        batch_rows: most rows of one minibatch.
        plan_updates: most minibatches in one plan.
        columns: the rows' columns, as JSON.
        derived: the columns computed when a stretch is closed, as JSON.
        prioritised: whether rows are drawn by the priorities that updates left.
    """

    lanes: int
    envs: int
    stream_rows: int
    keep_rows: int
    chunk_rows: int
    batch_rows: int
    plan_updates: int
    columns: list[dict[str, Any]]
    derived: list[dict[str, Any]]
    prioritised: bool = True

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
        """Columns of a row as they are gathered, derived ones included."""
        return PackedRows(RowLayout.from_json(self.columns + self.derived))

    @property
    def keeping_layout(self) -> RowLayout:
        """What is noted of each row in the ring.

        `left` is the number of rows to the end of its stretch, itself included; `born` the learning phase it came for.
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
        staging_rows = self.streams * (self.keep_rows + self.chunk_rows)
        return [
            ("bookkeeping", _page(Committed.nbytes(self.state_words))),
            ("staging", _page(self.row_layout.nbytes(staging_rows))),
            ("ring", _page(self.payload.nbytes(self.capacity))),
            ("keeping", _page(self.keeping_layout.nbytes(self.capacity))),
            *([("tree", _page(SumTree.nbytes(self.capacity)))] if self.prioritised else []),
            ("plans", PLAN_SLOTS * _page(self.plan_layout.nbytes(self.plan_updates))),
        ]

    def offset(self, part: str) -> int:
        """Where a part begins in the segment."""
        return self._offsets[part]

    @cached_property
    def _offsets(self) -> dict[str, int]:
        offsets, offset = {}, 0
        for name, size in self.parts():
            offsets[name] = offset
            offset += size
        return offsets

    @property
    def state_words(self) -> int:
        """Number of int64 counters."""
        return len(_WHOLE_WORDS) + len(_LANE_WORDS) * self.lanes + len(_STREAM_WORDS) * self.streams

    @property
    def nbytes(self) -> int:
        """Bytes of the whole segment."""
        return sum(size for _, size in self.parts())

    def to_json(self) -> dict[str, Any]:
        """The shape as plain JSON types."""
        return asdict(self)


@dataclass
class Ingested:
    """What taking in a block of rows did."""

    rows: int = 0
    segments: int = 0
    dropped: int = 0


class _Ahead:
    """Arrays for some minibatches in a row, touched before they are used."""

    def __init__(self, packed: PackedRows, together: int, rows: int) -> None:
        self.words = np.full((together, rows, packed.words), 0, np.uint64)
        self.columns = [packed.views(words) for words in self.words]
        self.stamps, self.whole = np.full((together, rows), 0, np.int64), np.full((together, rows), False)
        self.first = self.count = 0


class ReplayMemory:
    """A view on the memory's segment: its keeper takes rows in and draws plans, the learner gathers batches.

    Args:
        shape: the sizes.
        buffer: the shared bytes, `shape.nbytes` of them, zero when new.
    """

    kind = "replay"

    def __init__(self, shape: ReplayShape, buffer: Any) -> None:
        self.shape, self._buffer = shape, buffer
        self._committed = Committed(buffer, 0, shape.state_words)
        self._staging_rows = shape.keep_rows + shape.chunk_rows
        self._staging = shape.row_layout.views(buffer, shape.streams * self._staging_rows, shape.offset("staging"))
        self._packed, self._ring = shape.payload, shape.ring(buffer)
        self._rows_as_words = self._packed.rows(buffer, shape.capacity, shape.offset("ring"))
        self._tree: SumTree | None = None
        self._exponent: float | None = None
        self._ahead: _Ahead | None = None
        plan_bytes = _page(shape.plan_layout.nbytes(shape.plan_updates))
        self._plans = [
            shape.plan_layout.views(buffer, shape.plan_updates, shape.offset("plans") + slot * plan_bytes)
            for slot in range(PLAN_SLOTS)
        ]
        self.mended = 0
        "Priorities that were no priorities and were replaced, by this keeper."
        self._payload = tuple(column["name"] for column in shape.columns + shape.derived)
        self.reload()

    def reload(self) -> None:
        """Take up the counters as they were last committed (a keeper after a restart, or an onlooker)."""
        shape, self._state = self.shape, self._committed.load()
        whole, lanes = len(_WHOLE_WORDS), len(_LANE_WORDS) * shape.lanes
        self._whole = self._state[:whole]
        self._lanes = self._state[whole : whole + lanes].reshape(len(_LANE_WORDS), shape.lanes)
        self._streams = self._state[whole + lanes :].reshape(len(_STREAM_WORDS), shape.streams)
        self._position, self._epoch, self._rows, self._dropped, self._corrupt = self._lanes
        self._staged, self._opened, self._head, self._last_episode, self._last_step = self._streams
        self._tree = None  # it follows from the priorities, and is made anew when it is first needed

    # -- taking rows in -------------------------------------------------------------------------------------------

    def position(self, lane: int) -> int:
        """The sequence number of the block of `lane` that is to come next (mod 2^64)."""
        return int(self._position[lane]) % 2**64

    def epoch(self, lane: int) -> int:
        """The life of the executor whose block of `lane` was taken in last; 0 before the first."""
        return int(self._epoch[lane])

    def raw(self) -> dict[str, Array]:
        """The segment's bytes, part by part, as views (n,): all there is to keep, and what can be put in its place."""
        views = part_views(self._buffer, self.shape.parts())
        views.pop("tree", None)
        return views

    def start_lane(self, lane: int, position: int) -> None:
        """Tell where an untouched lane begins; once, before its first block."""
        self._position[lane] = np.uint64(position).astype(np.int64)
        self._committed.store(self._state)

    def room(self, lane: int = 0) -> int:  # noqa: ARG002 - the rollout memory's answer depends on it
        """Blocks of `lane` that can surely be taken in now: there is always room, because the oldest rows give way."""
        return 1

    def ingest(
        self, lane: int, sequence: int, epoch: int, rows: Mapping[str, Array], derive: Derive, *, drop_open: bool
    ) -> Ingested:
        """Take in one block: rows (n, ...) of one lane in time order.

        Args:
            lane: which executor's.
            sequence: the block's number in its lane; one already taken in is ignored.
            epoch: the life of the executor that wrote it; no stretch spans two.
            rows: the block's columns.
            derive: computes the derived columns from the rows of a closed stretch.
            drop_open: at a new epoch, forget the open stretch (it will be generated again) instead of closing it.
        """
        done = Ingested()
        if sequence != self.position(lane):
            return done
        streams = range(lane * self.shape.envs, (lane + 1) * self.shape.envs)
        if epoch != int(self._epoch[lane]):
            for stream in streams:
                if drop_open:
                    done.dropped += int(self._staged[stream] - self._opened[stream])
                    self._opened[stream] = self._staged[stream]
                else:
                    done.segments += self._close(stream, derive)
            self._epoch[lane] = epoch
        done.rows = len(rows["env"])
        for env, stream in enumerate(streams):
            mine = np.flatnonzero(rows["env"] == env) if self.shape.envs > 1 else np.arange(done.rows)
            done.segments += self._stage(stream, rows, mine, derive)
        self._advance(lane, sequence, done)
        return done

    def set_aside(self, lane: int, sequence: int, derive: Derive) -> None:
        """Record that a block failed its checks and is passed over; the open stretches of its lane end before it."""
        done = Ingested()
        for stream in range(lane * self.shape.envs, (lane + 1) * self.shape.envs):
            done.segments += self._close(stream, derive)
        self._corrupt[lane] += 1
        self._advance(lane, sequence, done)

    def _advance(self, lane: int, sequence: int, done: Ingested) -> None:
        self._position[lane] = np.uint64((sequence + 1) % 2**64).astype(np.int64)
        self._rows[lane] += done.rows
        self._dropped[lane] += done.dropped
        self._whole[_SEGMENTS] += done.segments
        self._committed.store(self._state)

    def _stage(self, stream: int, rows: Mapping[str, Array], mine: Array, derive: Derive) -> int:
        """Append the rows `mine` of a block to a stream's staging area, closing stretches on the way."""
        if len(mine) == 0:
            return 0
        episode, step = rows["episode"][mine].astype(np.int64), rows["step"][mine].astype(np.int64)
        before_episode = np.concatenate(([self._last_episode[stream]], episode[:-1]))
        before_step = np.concatenate(([self._last_step[stream]], step[:-1]))
        follows = (episode == before_episode) & (step == before_step + 1)
        ends = (rows["terminated"][mine] | rows["truncated"][mine] | rows["cut"][mine]).astype(bool)
        # A stretch is closed after a row that ends it, and before a row that does not follow on.
        borders = np.flatnonzero(ends) + 1
        gaps = np.flatnonzero(~follows)
        closed, start = 0, 0
        for border in np.unique(np.concatenate((borders, gaps, [len(mine)]))):
            if border > start:
                piece = mine[start:border]
                where = (
                    stream * self._staging_rows + (self._staged[stream] + np.arange(len(piece))) % self._staging_rows
                )
                for name, column in self._staging.items():
                    column[where] = rows[name][piece]
                self._staged[stream] += len(piece)
            if border < len(mine) or ends[-1]:
                closed += self._close(stream, derive)
            start = int(border)
        self._last_episode[stream], self._last_step[stream] = episode[-1], step[-1]
        return closed

    def _close(self, stream: int, derive: Derive) -> int:
        """Complete the open stretch and move its last rows into the ring. Returns 1, or 0 when nothing was open."""
        length = int(self._staged[stream] - self._opened[stream])
        self._opened[stream] = self._staged[stream]
        if length == 0:
            return 0
        kept = min(length, self.shape.keep_rows, self.shape.stream_rows)
        last = np.arange(int(self._staged[stream]) - kept, int(self._staged[stream]))
        where = stream * self._staging_rows + last % self._staging_rows
        segment = {name: column[where] for name, column in self._staging.items()}
        segment.update(derive(segment))
        ring, size = self._ring, self.shape.stream_rows
        to = stream * size + (int(self._head[stream]) + np.arange(kept)) % size
        ring["stamp"][to] = 0
        for name in self._payload:
            ring[name][to] = segment[name]
        ring["left"][to] = np.arange(kept, 0, -1)
        ring["born"][to] = int(self._whole[_PHASES]) + 1
        ring["priority"][to] = self._largest
        if self._tree is not None:
            self._tree.set(to, self._weights_of(ring["priority"][to]))
        first = int(self._whole[0]) + 1
        ring["stamp"][to] = np.arange(first, first + kept)
        self._whole[0] += kept
        self._head[stream] += kept
        return 1

    # -- drawing --------------------------------------------------------------------------------------------------

    def live(self) -> Array:
        """Indices of all rows that can be drawn."""
        return self._places(np.arange(len(self)))

    def _places(self, positions: Array) -> Array:
        """Where in the ring the rows are that come at these positions (n,) among all that can be drawn."""
        held, size = np.minimum(self._head, self.shape.stream_rows), self.shape.stream_rows
        if (held[:-1] == size).all():
            return positions
        ends = np.cumsum(held)
        stream = ends.searchsorted(positions, side="right")
        return np.asarray(positions + (np.arange(len(held)) * size - (ends - held))[stream])

    def __len__(self) -> int:
        return int(np.minimum(self._head, self.shape.stream_rows).sum())

    @property
    def fresh(self) -> tuple[int, int]:
        """Rows taken in, and stretches closed, since the last learning phase began."""
        return int(self._rows.sum() - self._whole[_PHASE_ROWS]), int(
            self._whole[_SEGMENTS] - self._whole[_PHASE_SEGMENTS]
        )

    @property
    def phases(self) -> int:
        """Learning phases begun so far."""
        return int(self._whole[_PHASES])

    @property
    def owed(self) -> int:
        """Minibatches that the phases so far were worth and that were not yet drawn."""
        return int(self._whole[_OWED])

    def begin_phase(self, due: int) -> None:
        """Begin a learning phase: what is `fresh` is worth `due` minibatches more, and every older row ages by one."""
        self._whole[_PHASES] += 1
        self._whole[_PHASE_SEGMENTS] = self._whole[_SEGMENTS]
        self._whole[_PHASE_ROWS] = self._rows.sum()
        self._whole[_OWED] += due
        self._committed.store(self._state)

    def ages(self) -> Array:
        """Age of each row of `live()` (N,) in learning phases: 1 in the phase it came for."""
        ages: Array = self.phases - self._ring["born"][self.live()] + 1
        return ages

    def columns(self, index: Array) -> dict[str, Array]:
        """Copies of the columns, derived ones included, of some rows of the ring (n, ...)."""
        return self._packed.views(self._rows_as_words.take(index, axis=0))

    @property
    def _largest(self) -> float:
        """The largest priority that any update left, at least 1: what a row has that no update has seen."""
        return max(1.0, float(self._whole[_LARGEST : _LARGEST + 1].view(np.float64)[0]))

    def _weights_of(self, priority: Array) -> Array:
        return np.asarray(np.power(priority.astype(np.float64), self._exponent or 0.0)) * (priority > 0)

    def _tree_for(self, exponent: float) -> SumTree:
        if self._tree is None or self._exponent != exponent:
            if not self.shape.prioritised:
                raise ValueError("drawing by priorities: expected a memory that was made for them (prioritised)")
            tree = SumTree(self._buffer, self.shape.offset("tree"), self.shape.capacity)
            self._exponent = exponent
            held = np.minimum(self._head, self.shape.stream_rows)
            tree.leaves[:] = 0
            for stream, rows in enumerate(held.tolist()):
                first = stream * self.shape.stream_rows
                for start in range(first, first + rows, _AT_ONCE):
                    piece = slice(start, min(start + _AT_ONCE, first + rows))
                    self._mend_priorities(np.arange(piece.start, piece.stop))
                    tree.leaves[piece] = self._weights_of(self._ring["priority"][piece])
            tree.add_up()
            self._tree = tree
        return self._tree

    def draw(
        self,
        seed: int,
        updates: int,
        batch_rows: int,
        *,
        exponent: float = 0.0,
        beta: float = 0.0,
        share: Array | None = None,
    ) -> dict[str, Any]:
        """Write a plan of `updates` minibatches and return its address `{"slot", "updates", "rows"}`.

        Uniformly, and by given probabilities, rows are drawn without replacement inside a minibatch and with it across
        them. In proportion to priority^exponent the draw is stratified (Schaul et al. 2016, appendix B.2.1): one row
        comes from each of `batch_rows` equal parts of the sum, so that only a row at a border between two, or with more
        than one, can come twice, and none of priority 0 ever comes. Importance weights are (N P)^-beta divided by the
        largest of the minibatch (section 3.4).

        Args:
            seed: seeds this plan's draws, together with the number of plans drawn before.
            updates: number of minibatches, at most `shape.plan_updates`.
            batch_rows: rows of a minibatch; fewer when the memory holds fewer.
            exponent: of the priorities that updates left; 0 for uniform draws.
            beta: 0 for no importance weights.
            share: probabilities (N,) of the rows of `live()`, all positive, with sum 1, instead of those priorities.

        Raises:
            ValueError: `share` is not for as many rows as the memory holds.
        """
        number, held = int(self._whole[_PLANS]), len(self)
        slot = number % PLAN_SLOTS
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number])))
        rows = min(batch_rows, held, self.shape.batch_rows)
        weights: Array | float = 1.0
        if share is not None and share.shape != (held,):
            raise ValueError(f"drawing: expected probabilities of {held} rows, got an array of {share.shape}")
        if not rows or not updates:
            index: Array = np.zeros((0, rows), np.int64)
        elif share is not None:
            positions = draw_shares(rng, share, updates, rows)
            index = self._places(positions.ravel()).reshape(positions.shape)
            weights = _importance(held * share[positions], beta)
        elif exponent > 0:
            index, weights = self._draw_by_priorities(rng, updates, rows, exponent, beta)
        else:
            positions = draw_evenly(rng, held, updates, rows)
            index = self._places(positions.ravel()).reshape(positions.shape)
        drawn, plan = len(index), self._plans[slot]
        plan["index"][:drawn, :rows] = index
        plan["stamp"][:drawn, :rows] = self._ring["stamp"].take(index, mode="clip")
        plan["weight"][:drawn, :rows] = weights
        plan["priority"][:drawn, :rows] = -1
        self._whole[_PLANS] += 1
        self._whole[_OWED] -= min(drawn, self.owed)
        self._committed.store(self._state)
        return {"slot": slot, "updates": drawn, "rows": rows}

    def _draw_by_priorities(
        self, rng: np.random.Generator, updates: int, rows: int, exponent: float, beta: float
    ) -> tuple[Array, Array]:
        """Indices and importance weights (K, M), none (0, M) where no row has any priority."""
        tree = self._tree_for(exponent)
        # Part by part, for all minibatches: what is looked for then lies side by side.
        points = rng.random((rows, updates))
        points += np.arange(rows)[:, None]
        points /= rows
        if not tree.total > 0:
            return np.zeros((0, rows), np.int64), np.ones((0, rows))
        index, weight = tree.draw(points.ravel())
        bad = self._mend_priorities(index)
        if len(bad):
            tree.set(bad, self._weights_of(self._ring["priority"][bad]))
        weight *= len(self) / tree.total
        return index.reshape(rows, updates).T, _importance(weight.reshape(rows, updates).T, beta)

    def _mend_priorities(self, index: Array) -> Array:
        """Give rows whose priority cannot be one the largest there is, as a new row has; they were overwritten.

        Returns:
            Which of the rows these were.
        """
        priority = self._ring["priority"].take(index, mode="clip")
        is_good = (priority >= 0) & (priority < np.inf)
        if is_good.all():
            return index[:0]
        bad = np.unique(index[~is_good])
        self._ring["priority"][bad] = self._largest
        self.mended += len(bad)
        return bad

    def gather(
        self, plan: Mapping[str, Any], k: int, window: int = 1, *, reuse: bool = False
    ) -> tuple[dict[str, Array], Array]:
        """Copy the k-th minibatch of a plan out of the ring.

        Args:
            plan: as drawn.
            k: which of its minibatches.
            window: consecutive rows of one stretch in one sample.
            reuse: single rows are copied into arrays of this object, which a later `gather` with `reuse` overwrites.

        Returns:
            The columns, (M, ...) or time-major (window, M, ...), with `weight` (M,) and, for windows, `valid`
            (window, M): rows past the end of the stretch repeat its last row and are not valid. And the positions (M,)
            of these rows in the minibatch: rows overwritten since they were drawn are left out.
        """
        slot, rows = self._plans[plan["slot"]], plan["rows"]
        if reuse and window == 1:
            ahead, place = self._gathered_ahead(plan, k)
            columns, whole = ahead.columns[place], ahead.whole[place]
        else:
            columns, whole = self._gather(slot["index"][k, :rows], slot["stamp"][k, :rows], window)
        batch = {**columns, "weight": slot["weight"][k, :rows]}
        if whole.all():
            return batch, np.arange(rows)
        positions = np.flatnonzero(whole)
        batch = {
            name: column[:, positions] if window > 1 and name != "weight" else column[positions]
            for name, column in batch.items()
        }
        return batch, positions

    def _gather(self, index: Array, stamp: Array, window: int) -> tuple[dict[str, Array], Array]:
        """Columns of rows or windows in fresh arrays, and which of them (M,) are still there."""
        where, stamps, valid = index, stamp, None
        if window > 1:
            ahead, size = np.arange(window)[:, None], self.shape.stream_rows
            left = np.clip(self._ring["left"][index], 1, window)
            valid, further = ahead < left, np.minimum(ahead, left - 1)
            start = (index // size) * size
            where = start + (index - start + further) % size
            # The rows of a window were stamped one after the other.
            stamps = stamp + further
        columns = self.columns(where)
        # Afterwards: whoever replaces a row takes its stamp away first.
        whole = self._ring["stamp"][where] == stamps
        if valid is not None:
            columns["valid"], whole = valid, whole.all(axis=0)
        return columns, whole

    def _gathered_ahead(self, plan: Mapping[str, Any], k: int) -> tuple[_Ahead, int]:
        """Arrays that hold the k-th minibatch, and where; if they must be filled, some that follow come along."""
        slot, rows = self._plans[plan["slot"]], plan["rows"]
        ahead = self._ahead
        if ahead is None or ahead.stamps.shape[1] != rows:
            together = max(1, min(_GATHERED_TOGETHER // (rows * self._packed.words * WORD), self.shape.plan_updates))
            ahead = self._ahead = _Ahead(self._packed, together, rows)
        place = k - ahead.first
        stamps = slot["stamp"][k, :rows]
        if not (0 <= place < ahead.count and (ahead.stamps[place] == stamps).all()):
            ahead.first, place = k, 0
            ahead.count = count = min(plan["updates"] - k, len(ahead.stamps))
            index = slot["index"][k : k + count, :rows]
            ahead.stamps[:count] = slot["stamp"][k : k + count, :rows]
            # With another mode numpy would copy by way of an array of its own.
            self._rows_as_words.take(index, axis=0, out=ahead.words[:count], mode="clip")
            # Afterwards: whoever replaces a row takes its stamp away first.
            ahead.whole[:count] = self._ring["stamp"].take(index, mode="clip") == ahead.stamps[:count]
        return ahead, place

    def note_priorities(self, plan: Mapping[str, Any], k: int, positions: Array, priorities: Array) -> None:
        """Leave new priorities (M,) for the k-th minibatch; the keeper takes them up in `settle`.

        Priorities that are negative, infinite or no number leave the old ones in force.
        """
        self._plans[plan["slot"]]["priority"][k, positions] = priorities

    def settle(self, plan: Mapping[str, Any]) -> int:
        """Take up the priorities a learner left in a plan, for rows still in place. Returns how many were too late."""
        slot, drawn, rows = self._plans[plan["slot"]], plan["updates"], plan["rows"]
        new = slot["priority"][:drawn, :rows].ravel()
        given = (new >= 0) & (new < np.inf)
        if not given.any():
            return 0
        index, stamp = slot["index"][:drawn, :rows].ravel(), slot["stamp"][:drawn, :rows].ravel()
        same = self._ring["stamp"].take(index, mode="clip") == stamp
        same &= given
        if not same.all():
            index, new = index[same], new[same]
        if len(index):
            self._ring["priority"][index] = new
            self._whole[_LARGEST : _LARGEST + 1].view(np.float64)[0] = max(self._largest, float(new.max()))
            if self._tree is not None:
                self._tree.set(index, self._weights_of(new))
        return int(given.sum()) - len(index)

    # -- looking --------------------------------------------------------------------------------------------------

    def row(self, index: int) -> dict[str, Array]:
        """One row of the ring, by name."""
        return {name: column[index].copy() for name, column in self._ring.items()}

    def ledger(self) -> list[dict[str, int]]:
        """Per lane: blocks and rows taken in, rows dropped because they are generated again, blocks set aside."""
        state = self._committed.load()
        lanes = state[len(_WHOLE_WORDS) :][: len(_LANE_WORDS) * self.shape.lanes].reshape(len(_LANE_WORDS), -1)
        return [
            {"position": int(p) % 2**64, "rows": int(r), "dropped": int(d), "corrupt": int(c)}
            for p, _, r, d, c in lanes.T
        ]

    @property
    def overwritten(self) -> int:
        """Rows that were kept and gave way to newer ones, as of the last look at the counters."""
        return int(np.maximum(self._head - self.shape.stream_rows, 0).sum())

    @property
    def segments(self) -> int:
        """Stretches closed so far."""
        return int(self._whole[_SEGMENTS])


def _importance(shares: Array, beta: float) -> Array:
    """(N P)^-beta over the largest of each minibatch (K, M), of N P (K, M)."""
    weights = np.power(shares, -beta)
    weights /= weights.max(axis=1, keepdims=True)
    return np.asarray(weights)


def _page(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096
