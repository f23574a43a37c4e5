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

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mlxe_async.memory.committed import Committed, part_views
from mlxe_async.memory.drawing import draw_evenly, draw_shares, spread
from mlxe_async.memory.frames import FrameRing, oldest_frame
from mlxe_async.memory.gathering import Gatherer
from mlxe_async.memory.shape import LANE_WORDS, PLAN_SLOTS, REFERENCE, STREAM_WORDS, WHOLE_WORDS, ReplayShape
from mlxe_async.memory.stretches import Counters, Stretches, arrived, by_environment, compact, inside
from mlxe_async.memory.sum_tree import SumTree
from mlxe_async.rows import Array

__all__ = ["Derive", "DeriveMany", "Ingested", "ReplayMemory", "ReplayShape"]

Derive = Callable[[dict[str, Array]], dict[str, Array]]
"""Derived columns (L, ...) of the rows of a closed stretch."""
DeriveMany = Callable[[dict[str, Array], Array], dict[str, Array]]
"""Derived columns (N, ...) of several closed stretches, one after the other, and the rows of each (S,)."""

_SEGMENTS, _PLANS, _PHASES, _PHASE_SEGMENTS, _PHASE_ROWS, _OWED, _LARGEST = range(1, len(WHOLE_WORDS))
_AT_ONCE = 1 << 16
_BYTES_AT_ONCE = 1 << 20  # of rows that are completed together: they stay in the caches
# Rows of more words are put into the ring column by column: putting them together first would be one copy more.
_PACKED_WORDS = 128


@dataclass
class Ingested:
    """What taking in a block of rows did."""

    rows: int = 0
    segments: int = 0
    dropped: int = 0


class _Deriving(NamedTuple):
    """How derived columns are made."""

    derive: Derive
    many: DeriveMany | None

    def __call__(self, segments: dict[str, Array], lengths: Array) -> dict[str, Array]:
        """Derived columns (N, ...) of stretches of these lengths (S,)."""
        if self.many is not None:
            return self.many(segments, lengths)
        if len(lengths) == 1:
            return self.derive(segments)
        ends = np.cumsum(lengths).tolist()
        pieces = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        answers = [self.derive({name: column[piece] for name, column in segments.items()}) for piece in pieces]
        return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}


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
        self._staging_rows = shape.staging_rows
        self._staging = shape.row_layout.views(buffer, shape.streams * self._staging_rows, shape.offset("staging"))
        self._ring, self._frames = shape.ring(buffer), shape.frame_ring(buffer)
        self._gatherer = Gatherer(shape, buffer)
        self._plans = self._gatherer.plans
        self._tree: SumTree | None = None
        self._exponent: float | None = None
        self.mended = 0
        "Priorities that were no priorities and were replaced, by this keeper."
        self._ring_rows = shape.payload.rows(buffer, shape.capacity, shape.offset("ring"))
        # Frames are laid out one stretch after the other: each depends on what became of the one before.
        self._together = 0 if shape.frames else max(1, min(_AT_ONCE, _BYTES_AT_ONCE // self._ring_rows.strides[0]))
        self._plain = tuple(c["name"] for c in shape.columns + shape.derived if c["name"] not in shape.stacked)
        self.reload()

    def reload(self) -> None:
        """Take up the counters as they were last committed (a keeper after a restart, or an onlooker)."""
        shape, self._state = self.shape, self._committed.load()
        whole, lanes = len(WHOLE_WORDS), len(LANE_WORDS) * shape.lanes
        self._whole = self._state[:whole]
        self._lanes = self._state[whole : whole + lanes].reshape(len(LANE_WORDS), shape.lanes)
        self._streams = self._state[whole + lanes :].reshape(-1, shape.streams)
        self._position, self._epoch, self._rows, self._dropped, self._corrupt = self._lanes
        self._staged, self._opened, self._head, self._last_episode, self._last_step = self._streams[: len(STREAM_WORDS)]
        if shape.frames:
            self._tail_word, self._frame_head, self._framed, self._stack = self._streams[len(STREAM_WORDS) :]
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
        self,
        lane: int,
        sequence: int,
        epoch: int,
        rows: Mapping[str, Array],
        derive: Derive,
        *,
        drop_open: bool,
        derive_many: DeriveMany | None = None,
    ) -> Ingested:
        """Take in one block: rows (n, ...) of one lane in time order.

        Args:
            lane: which executor's.
            sequence: the block's number in its lane; one already taken in is ignored.
            epoch: the life of the executor that wrote it; no stretch spans two.
            rows: the block's columns.
            derive: computes the derived columns from the rows of a closed stretch.
            drop_open: at a new epoch, forget the open stretch (it will be generated again) instead of closing it.
            derive_many: does what `derive` does, the same to the last bit, for several stretches at once.
        """
        done = Ingested()
        if sequence != self.position(lane):
            return done
        deriving = _Deriving(derive, derive_many)
        if epoch != int(self._epoch[lane]):
            if drop_open:
                streams = slice(lane * self.shape.envs, (lane + 1) * self.shape.envs)
                done.dropped += int((self._staged[streams] - self._opened[streams]).sum())
                self._opened[streams] = self._staged[streams]
            else:
                done.segments += self._close_lane(lane, deriving)
            self._epoch[lane] = epoch
        done.rows = len(rows["env"])
        if done.rows:
            done.segments += self._complete(self._stage(lane, rows), deriving)
        self._advance(lane, sequence, done)
        return done

    def set_aside(self, lane: int, sequence: int, derive: Derive, *, derive_many: DeriveMany | None = None) -> None:
        """Record that a block failed its checks and is passed over; the open stretches of its lane end before it."""
        done = Ingested(segments=self._close_lane(lane, _Deriving(derive, derive_many)))
        self._corrupt[lane] += 1
        self._advance(lane, sequence, done)

    def _advance(self, lane: int, sequence: int, done: Ingested) -> None:
        self._position[lane] = np.uint64((sequence + 1) % 2**64).astype(np.int64)
        self._rows[lane] += done.rows
        self._dropped[lane] += done.dropped
        self._whole[_SEGMENTS] += done.segments
        self._committed.store(self._state)

    def _stage(self, lane: int, rows: Mapping[str, Array]) -> Stretches:
        """Append the rows (n, ...) of a block, n > 0, to their streams' staging areas; tells what they close."""
        envs, order = self.shape.envs, None
        if envs == 1:
            stream = np.full(len(rows["env"]), lane)
        else:
            order = by_environment(rows["env"], envs)
            if not len(order):
                return Stretches(order, order, order)
            stream = lane * envs + rows["env"][order].astype(np.int64)
        ends = (rows["terminated"] | rows["truncated"] | rows["cut"]).astype(bool)
        episode, step = rows["episode"].astype(np.int64), rows["step"].astype(np.int64)
        if order is not None:
            ends, episode, step = ends[order], episode[order], step[order]
        counters = Counters(self._staged, self._opened, self._last_episode, self._last_step)
        new = arrived(stream, order, episode, step, ends, counters)
        # Of all stretches the last rows are still there, `keep_rows` of them: so wide is the staging area.
        where = stream * self._staging_rows + new.number % self._staging_rows
        there = compact(where) if envs == 1 else where
        for name, column in self._staging.items():
            column[there] = rows[name] if order is None else rows[name].take(order, axis=0)
        self._staged[new.streams] = new.number[new.last] + 1
        self._last_episode[new.streams], self._last_step[new.streams] = episode[new.last], step[new.last]
        self._opened[new.stretches.stream] = new.stretches.end
        return new.stretches

    def _close_lane(self, lane: int, deriving: _Deriving) -> int:
        """Close what is open in all streams of a lane. Returns how many stretches that were."""
        streams = np.arange(lane * self.shape.envs, (lane + 1) * self.shape.envs)
        length = self._staged[streams] - self._opened[streams]
        streams, length = streams[length > 0], length[length > 0]
        self._opened[streams] = self._staged[streams]
        return self._complete(Stretches(streams, self._staged[streams], length), deriving)

    def _complete(self, closed: Stretches, deriving: _Deriving) -> int:
        """Complete closed stretches and move their last rows into the ring. Returns how many these are."""
        kept = np.minimum(closed.length, min(self.shape.keep_rows, self.shape.stream_rows))
        until, start = np.cumsum(kept), 0
        while start < len(kept):
            most = self._together + (int(until[start - 1]) if start else 0)
            stop = max(start + 1, int(until.searchsorted(most, side="right")))
            some = slice(start, stop)
            self._keep(closed.stream[some], closed.end[some] - kept[some], kept[some], deriving)
            start = stop
        return len(kept)

    def _keep(self, stream: Array, first: Array, kept: Array, deriving: _Deriving) -> None:
        """Complete stretches (S,), `kept` rows each from row `first` of their streams on, and put them in."""
        which, ahead = inside(kept)
        size, wide, count = self.shape.stream_rows, self._staging_rows, len(which)
        segments = self._gathered(stream * wide, first % wide, which, ahead)
        segments |= deriving(segments, kept)
        head = self._heads(stream, kept)
        to = (head % size)[which] + ahead
        to -= np.where(to >= size, size, 0)
        to += (stream * size)[which]
        ring = self._ring
        ring["stamp"][to] = 0
        columns, lost = {name: segments[name] for name in self._plain}, 0
        if self._frames is not None:
            stacks = {name: segments[name] for name in self.shape.stacked}
            references, lost = self._store_frames(self._frames, int(stream[0]), int(first[0]), stacks)
            columns |= references
        left, stamps = kept[which] - ahead, int(self._whole[0]) + 1 + np.arange(count)
        self._head[stream] = head + kept
        self._whole[0] += count
        if len(kept) > 1:
            is_kept = head[which] + ahead >= (self._head[stream] - size)[which]
            if not is_kept.all():  # more came of a stream than its part of the ring holds
                to, left, stamps = to[is_kept], left[is_kept], stamps[is_kept]
                columns = {name: column[is_kept] for name, column in columns.items()}
        there = compact(to) if len(kept) == 1 else to
        self._write(there, columns)
        ring["left"][there] = left
        ring["born"][there] = int(self._whole[_PHASES]) + 1
        ring["priority"][there] = self._largest
        stamps[:lost] = ring["priority"][to[:lost]] = 0
        if self._tree is not None:
            self._tree.set(to, self._weights_of(ring["priority"][there]))
        ring["stamp"][there] = stamps

    def _gathered(self, base: Array, first: Array, which: Array, ahead: Array) -> dict[str, Array]:
        """Copies of the staged rows (N, ...) that come `ahead` of the first of stretches (S,), which may turn round."""
        where = first[which] + ahead
        where -= np.where(where >= self._staging_rows, self._staging_rows, 0)
        where += base[which]
        there = compact(where) if len(first) == 1 else where
        if isinstance(there, slice):
            return {name: column[there].copy() for name, column in self._staging.items()}
        return {name: column.take(there, axis=0) for name, column in self._staging.items()}

    def _heads(self, stream: Array, kept: Array) -> Array:
        """How many rows were in the streams (S,), ascending, before each of the stretches with `kept` rows (S,)."""
        if len(stream) == 1:
            return np.asarray(self._head[stream])
        before = np.cumsum(kept) - kept
        return np.asarray(self._head[stream] + before - before[stream.searchsorted(stream)])

    def _write(self, to: Array | slice, columns: Mapping[str, Array]) -> None:
        """Put columns (N, ...) of all names into these rows (N,) of the ring, which have no stamp now."""
        if isinstance(to, slice) or self._ring_rows.shape[1] > _PACKED_WORDS:
            for name, column in columns.items():
                self._ring[name][to] = column
            return
        packed = np.zeros((len(to), self._ring_rows.shape[1]), np.uint64)
        for name, view in self.shape.payload.views(packed).items():
            view[...] = columns[name]
        self._ring_rows[to] = packed

    def _store_frames(
        self, frames: FrameRing, stream: int, first: int, stacks: Mapping[str, Array]
    ) -> tuple[dict[str, Array], int]:
        """Store the frames of a stretch that begins at row `first` of the staging area; rows that lose theirs go.

        Returns:
            The references by column, and how many of the stretch's own first rows there was no room for.
        """
        head, size, kept = int(self._head[stream]), self.shape.stream_rows, len(stacks["obs"])
        before = stream * self._staging_rows + (first - 1) % self._staging_rows
        follows = self._stack[stream] > 0 and first == self._framed[stream]
        # As bytes: what is no number equals itself too.
        if follows and self._staging["next_obs"][before].tobytes() == stacks["obs"][0].tobytes():
            last = int(self._stack[stream]) - 1
        else:
            last = None
        layout = frames.lay_out(int(self._frame_head[stream]), last, stacks)
        references, oldest = layout.references["obs"], layout.head - frames.rows
        lost = int(np.searchsorted(oldest_frame(references), oldest))
        tail = max(int(self._tail_word[stream]), head + kept - size)
        known, rows = self._ring["obs" + REFERENCE], range(tail, head)
        gone = bisect_left(rows, oldest, key=lambda row: int(oldest_frame(int(known[stream * size + row % size]))))
        if gone:
            where = stream * size + np.arange(tail, tail + gone) % size
            self._ring["stamp"][where] = 0
            if self._tree is not None:
                self._tree.set(where, 0.0)
        frames.write(stream, layout)
        self._tail_word[stream] = tail + gone + lost
        self._frame_head[stream], self._framed[stream] = layout.head, first + kept
        self._stack[stream] = 0 if layout.last is None else layout.last + 1
        return {name + REFERENCE: column for name, column in layout.references.items()}, lost

    # -- drawing --------------------------------------------------------------------------------------------------

    def live(self) -> Array:
        """Indices of all rows that can be drawn."""
        return self._places(np.arange(len(self)))

    def _places(self, positions: Array) -> Array:
        """Where in the ring the rows are that come at these positions (n,) among all that can be drawn."""
        tail, held, size = self._tail, self._held, self.shape.stream_rows
        if (held[:-1] == size).all() and (held[-1] == size or not tail[-1]):
            return positions
        ends = np.cumsum(held)
        stream = ends.searchsorted(positions, side="right")
        turned = np.where(held == size, 0, tail)
        return np.asarray(stream * size + (positions - (ends - held)[stream] + turned[stream]) % size)

    @property
    def _tail(self) -> Array:
        """Rows (streams,) that gave way to newer ones."""
        return np.asarray(self._tail_word if self.shape.frames else np.maximum(self._head - self.shape.stream_rows, 0))

    @property
    def _held(self) -> Array:
        return np.asarray(self._head - self._tail)

    def __len__(self) -> int:
        return int(self._held.sum())

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
        return self._gatherer.columns(index)

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
            tree.leaves[:] = 0
            live = self.live()
            for start in range(0, len(live), _AT_ONCE):
                piece = live[start : start + _AT_ONCE]
                self._mend_priorities(piece)
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
        """Write a plan of `updates` minibatches and return its address `{"slot", "updates", "rows", "number"}`.

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
        return {"slot": slot, "updates": drawn, "rows": rows, "number": number}

    def _draw_by_priorities(
        self, rng: np.random.Generator, updates: int, rows: int, exponent: float, beta: float
    ) -> tuple[Array, Array]:
        """Indices and importance weights (K, M), none (0, M) where no row has any priority."""
        tree = self._tree_for(exponent)
        offsets = rng.random(updates * rows)
        route = spread(rng, updates, rows)
        if not tree.total > 0:
            return np.zeros((0, rows), np.int64), np.ones((0, rows))
        index, weight = tree.draw_spread(offsets)
        bad = self._mend_priorities(index)
        if len(bad):
            tree.set(bad, self._weights_of(self._ring["priority"][bad]))
        weight *= len(self) / tree.total
        return index.take(route, mode="clip"), _importance(weight.take(route, mode="clip"), beta)

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
        return self._gatherer.gather(plan, k, window, reuse=reuse)

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
        columns = {name: column[0] for name, column in self.columns(np.array([index])).items()}
        return columns | {column.name: self._ring[column.name][index] for column in self.shape.keeping_layout.columns}

    def ledger(self) -> list[dict[str, int]]:
        """Per lane: blocks and rows taken in, rows dropped because they are generated again, blocks set aside."""
        state = self._committed.load()
        lanes = state[len(WHOLE_WORDS) :][: len(LANE_WORDS) * self.shape.lanes].reshape(len(LANE_WORDS), -1)
        return [
            {"position": int(p) % 2**64, "rows": int(r), "dropped": int(d), "corrupt": int(c)}
            for p, _, r, d, c in lanes.T
        ]

    @property
    def overwritten(self) -> int:
        """Rows that were kept and gave way to newer ones, as of the last look at the counters."""
        return int(self._tail.sum())

    @property
    def segments(self) -> int:
        """Stretches closed so far."""
        return int(self._whole[_SEGMENTS])


def _importance(shares: Array, beta: float) -> Array:
    """(N P)^-beta over the largest of each minibatch (K, M), of N P (K, M)."""
    weights = np.power(shares, -beta)
    weights /= weights.max(axis=1, keepdims=True)
    return np.asarray(weights)
