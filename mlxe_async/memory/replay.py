"""Replay memory: finished segments of episodes, kept in shared memory and drawn from again and again.

Rows arrive in the order of each *stream* (one environment of one executor), wait until their segment is closed, by the
end of the episode, by a cut, or because the next row does not follow on, and are then put into the stream's part of the
ring (see `ingesting`). Because every stream has its own part, what the memory holds does not depend on which executor
was faster.

Each row in the ring carries a *stamp*, unique for ever; a batch names rows by index and stamp, so that a row that was
overwritten meanwhile is noticed and neither learned from nor given a priority (see `sampling` and `gathering`).

Time is counted in learning phases: one begins with the first draw after new segments were closed. Each row bears the
number of the phase it came in for (`born`), which follows from the committed counters (see `bookkeeping`) like
everything else, so that a successor gives every row the age its predecessor would have given it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlxe_async.memory.bookkeeping import OWED, PHASE_ROWS, PHASE_SEGMENTS, PHASES, SEGMENTS, Bookkeeping
from mlxe_async.memory.committed import part_views
from mlxe_async.memory.gathering import Gatherer
from mlxe_async.memory.ingesting import Derive, DeriveMany, Deriving, Ingested, Ingester
from mlxe_async.memory.moments import mean_and_variance, pooled
from mlxe_async.memory.priorities import Priorities
from mlxe_async.memory.ring import RingWriter
from mlxe_async.memory.sampling import Sampler
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.memory.staging import Staging
from mlxe_async.rows import Array


class ReplayMemory:
    """A view on the memory's segment: its keeper takes rows in and draws plans, the learner gathers batches.

    Args:
        shape: the sizes.
        buffer: the shared bytes, `shape.nbytes` of them, zero when new.
        formatted: whether `format_memory` was called when they were new; if so, zeros are damage.

    Raises:
        CorruptRecord: the counters in the shared bytes are damaged.
    """

    kind = "replay"

    def __init__(self, shape: ReplayShape, buffer: Any, *, formatted: bool = False) -> None:
        self.shape, self._buffer = shape, buffer
        self._ring = ring = shape.ring(buffer)
        self._books = books = Bookkeeping(shape, buffer, formatted=formatted)
        self._priorities = Priorities(shape, buffer, ring["priority"], books)
        staging = Staging(shape, buffer, books)
        self._ingester = Ingester(
            shape, books, staging, RingWriter(shape, buffer, ring, books, self._priorities, staging)
        )
        self._gatherer = Gatherer(shape, buffer)
        if shape.moments:
            where, count = shape.offset("moments"), shape.plan_slots * shape.moment_words
            self._told_moments = np.frombuffer(buffer, np.float64, count, where).reshape(shape.plan_slots, -1)
        self._sampler = Sampler(shape, ring["stamp"], self._gatherer.plans, books, self._priorities)

    def reload(self) -> None:
        """Take up the counters as they were last committed (a keeper after a restart, or an onlooker).

        Raises:
            CorruptRecord: the counters in the shared bytes are damaged.
        """
        self._books.load()
        self._priorities.reload()

    def raw(self) -> dict[str, Array]:
        """The segment's bytes, part by part, as views (n,): all there is to keep, and what can be put in its place."""
        views = part_views(self._buffer, self.shape.parts())
        views.pop("tree", None)
        return views

    # -- taking rows in -------------------------------------------------------------------------------------------

    def position(self, lane: int) -> int:
        """The sequence number of the block of `lane` that is to come next (mod 2^64)."""
        return int(self._books.position[lane]) % 2**64

    def epoch(self, lane: int) -> int:
        """The life of the executor whose block of `lane` was taken in last; 0 before the first."""
        return int(self._books.epoch[lane])

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
        alike: bool = False,
        derive_many: DeriveMany | None = None,
    ) -> Ingested:
        """Take in one block: rows (n, ...) of one lane in time order.

        Args:
            lane: which executor's.
            sequence: the block's number in its lane; one already taken in is ignored.
            epoch: the life of the executor that wrote it; no segment spans two.
            rows: the block's columns.
            derive: computes the derived columns from the rows of a closed segment.
            drop_open: at a new epoch, forget the open segment (it will be generated again) instead of closing it.
            alike: what a dead executor did not deliver is generated again to the same rows, each rollout up to a row
                that is its `last`: rows that came before its death are not taken in twice. Where they will be others,
                an empty block comes first, and then they are forgotten as by `drop_open`.
            derive_many: does what `derive` does, the same to the last bit, for several segments at once.
        """
        if sequence != self.position(lane):
            return Ingested()
        deriving = Deriving(derive, derive_many)
        return self._ingester.ingest(lane, sequence, epoch, rows, deriving, drop_open=drop_open, alike=alike)

    def set_aside(self, lane: int, sequence: int, derive: Derive, *, derive_many: DeriveMany | None = None) -> None:
        """Record that a block failed its checks and is passed over; the open segments of its lane end before it."""
        self._ingester.set_aside(lane, sequence, Deriving(derive, derive_many))

    # -- learning phases ------------------------------------------------------------------------------------------

    @property
    def fresh(self) -> tuple[int, int]:
        """Rows taken in, and segments closed, since the last learning phase began."""
        whole = self._books.whole
        return int(self._books.rows.sum() - whole[PHASE_ROWS]), int(whole[SEGMENTS] - whole[PHASE_SEGMENTS])

    @property
    def phases(self) -> int:
        """Learning phases begun so far."""
        return int(self._books.whole[PHASES])

    @property
    def owed(self) -> int:
        """Minibatches that the phases so far were worth and that were not yet drawn."""
        return int(self._books.whole[OWED])

    def begin_phase(self, due: int) -> None:
        """Begin a learning phase: what is `fresh` is worth `due` minibatches more, and every older row ages by one."""
        whole = self._books.whole
        whole[PHASES] += 1
        whole[PHASE_SEGMENTS] = whole[SEGMENTS]
        whole[PHASE_ROWS] = self._books.rows.sum()
        whole[OWED] += due
        self._books.store()

    def ages(self) -> Array:
        """Age of each row of `live()` (N,) in learning phases: 1 in the phase it came for."""
        ages: Array = self.phases - self._ring["born"][self.live()] + 1
        return ages

    # -- drawing --------------------------------------------------------------------------------------------------

    def live(self) -> Array:
        """Indices of all rows that can be drawn."""
        return self._books.live()

    def __len__(self) -> int:
        return self._books.live_rows

    def draw(
        self,
        seed: int,
        updates: int,
        batch_rows: int,
        *,
        exponent: float = 0.0,
        beta: float = 0.0,
        share: Array | None = None,
        call: int = 0,
        lane: int | None = None,
        is_local: bool = False,
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
            call: number of the call that the plan is drawn for, from 1, for `drawn_for`; 0: it is not asked for.
            lane: write it into the slot of this lane, where it lies until the next one of this lane; None: slots take
                turns.
            is_local: draw rows of this lane alone, not in proportion to the priorities that updates left.

        Raises:
            ValueError: `share` is not for as many rows as the memory holds.
        """
        if self.shape.moments:  # before the plan counts
            self._told_moments[self._sampler.next_slot(lane)] = pooled(self._books.moments)
        return self._sampler.draw(seed, updates, batch_rows, exponent, beta, share, call, lane, is_local=is_local)

    def drawn_for(self, call: int, lane: int | None = None) -> dict[str, Any] | None:
        """The address of the newest plan if it was drawn for this call, whose answer was lost; None if it was not."""
        return self._sampler.drawn_for(call, lane)

    def gather(
        self, plan: Mapping[str, Any], k: int, window: int = 1, *, reuse: bool = False
    ) -> tuple[dict[str, Array], Array]:
        """Copy the k-th minibatch of a plan out of the ring.

        Args:
            plan: as drawn.
            k: which of its minibatches.
            window: consecutive rows of one segment in one sample.
            reuse: single rows are copied into arrays of this object, which a later `gather` with `reuse` overwrites.

        Returns:
            The columns, (M, ...) or time-major (window, M, ...), with `weight` (M,) and, for windows, `valid`
            (window, M): rows past the end of the segment repeat its last row and are not valid. And the positions (M,)
            of these rows in the minibatch: rows overwritten since they were drawn are left out.
        """
        return self._gatherer.gather(plan, k, window, reuse=reuse)

    def drawn(self, plan: Mapping[str, Any]) -> tuple[Array, Array]:
        """Where the rows of all minibatches of a plan lie in the ring (U, M), and their stamps (U, M)."""
        return self._gatherer.drawn(plan)

    def rows_at(self, index: Array, stamp: Array) -> tuple[dict[str, Array], Array]:
        """Copies of the columns of single rows (n, ...), and which of them were still those of these stamps (n,)."""
        return self._gatherer.rows_at(index, stamp)

    def share(self, part: int, parts: int) -> None:
        """Gather from now on what one of several workers learns from: a part of each minibatch, the others the rest."""
        self._gatherer.share(part, parts)

    def rows_of(self, plan: Mapping[str, Any]) -> int:
        """Samples of a plan's minibatch that are gathered."""
        return self._gatherer.rows_of(plan)

    def note_priorities(self, plan: Mapping[str, Any], k: int, positions: Array, priorities: Array) -> None:
        """Leave new priorities (M,) for the k-th minibatch; the keeper takes them up in `settle`.

        Priorities that are negative, infinite or no number leave the old ones in force.
        """
        self._sampler.note_priorities(plan, k, self._gatherer.in_plan(plan, positions), priorities)

    def settle(self, plan: Mapping[str, Any]) -> int:
        """Take up the priorities a learner left in a plan, for rows still in place. Returns how many were too late."""
        return self._sampler.settle(plan)

    @property
    def mended(self) -> int:
        """Priorities that were no priorities and were replaced, by this keeper."""
        return self._priorities.mended

    # -- moments of the observations ------------------------------------------------------------------------------

    def moments(self, plan: Mapping[str, Any] | None = None) -> tuple[Array, Array, int]:
        """Mean and variance (O,) of all observations taken in, each once, and how many these are.

        Args:
            plan: as they were when this was drawn; None: as of the last look at the counters.
        """
        found = pooled(self._books.moments) if plan is None else self._told_moments[plan["slot"]].copy()
        return mean_and_variance(found)

    def begin_moments(self, mean: Array, variance: Array, count: float) -> None:
        """Count on from moments (O,) of observations that are not in this memory, before the first row comes."""
        self._books.moments[0] = np.concatenate([[count], mean, variance * count])
        self._books.store()

    # -- looking --------------------------------------------------------------------------------------------------

    def columns(self, index: Array) -> dict[str, Array]:
        """Copies of the columns, derived ones included, of some rows of the ring (n, ...)."""
        return self._gatherer.columns(index)

    def row(self, index: int) -> dict[str, Array]:
        """One row of the ring, by name."""
        columns = {name: column[0] for name, column in self.columns(np.array([index])).items()}
        return columns | {column.name: self._ring[column.name][index] for column in self.shape.keeping_layout.columns}

    def ledger(self) -> list[dict[str, int]]:
        """Per lane: blocks and rows taken in, rows dropped because they are generated again, blocks set aside."""
        return self._books.ledger()

    @property
    def overwritten(self) -> int:
        """Rows that were kept and gave way to newer ones, as of the last look at the counters."""
        return int(self._books.tail.sum())

    @property
    def segments(self) -> int:
        """Segments closed so far."""
        return int(self._books.whole[SEGMENTS])
