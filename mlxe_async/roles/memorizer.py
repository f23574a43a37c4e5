"""The memorizer: takes committed blocks out of the lanes, keeps them, and draws what the learner is to learn from.

Where the algorithm's priorities are made of factors, each learning phase begins with an appraisal of all stored rows by
the newest published weights, a few broadcast operations and one pass of the numpy network; all minibatches of the phase
are drawn by the probabilities that come of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mlxe_async.errors import CorruptRecord, MlxeError
from mlxe_async.maths import priorities as maths
from mlxe_async.roles.keeping import Store
from mlxe_async.roles.states import PREFIX, expect_counts, expect_numbers, resumes, take_up
from mlxe_async.rows import Array, RowLayout
from mlxe_async.seeds import derive_seed

FACTORS = ("age", "risk", "td")
APPRAISED_AT_ONCE = 8192
# Rows of large observations are fewer at a time.
APPRAISED_BYTES = 1 << 26
_APPRAISED = {"risk": "return", "td": "td_error"}


class Weights(Protocol):
    """The reading end of the published weights, `ipc.shared.weights.WeightsReader`."""

    def latest(self) -> int:
        """Newest version, 0 before the first."""

    def read(self, into: Array) -> int | None:
        """Copy the newest version; None when it could not be had whole."""


class Lane(Protocol):
    """The reading end of a lane, `ipc.shared.lanes.LaneReader`."""

    def backlog(self) -> int:
        """Committed blocks not yet read."""

    @property
    def position(self) -> int:
        """Sequence number of the block to be read next."""

    def read(self, into: Any) -> Any:
        """Copy out the next block; None when there is none.

        Raises:
            CorruptRecord: the block does not pass its checks.
        """

    def skip(self) -> int:
        """Pass over a block that cannot be read; returns its sequence number."""

    def release(self, sequence: int) -> None:
        """Give the room up to and including this block back to the writer."""

    def seek(self, sequence: int) -> None:
        """Go to where a predecessor left off."""


@dataclass(frozen=True)
class MemorizerPlan:
    """The few values a memorizer is made with.

    Args:
        seed: the run's seed.
        block_rows: most rows in one block of a lane.
        redo: what a dead executor left unfinished will be generated again, alike (so it is dropped, not closed).
        rollouts_per_update: whole rollouts that one update takes; None: all there are (rollout memory only).
        plan_updates: most minibatches in one plan (replay memory only).
        alike: what is generated again are the same rows, so that those which came already are not taken in twice.
        is_local: a plan for the worker of a lane is of the rows of that lane alone.
    """

    seed: int
    block_rows: int
    redo: bool
    rollouts_per_update: int | None
    plan_updates: int
    alike: bool = False
    is_local: bool = False


def check_priorities(algorithm: Any) -> None:
    """Refuse priorities that cannot be had of an algorithm.

    Raises:
        ValueError: there is no factor, an unknown one, one that needs the verb `appraise`, which is not there, or the
            memory draws nothing.
    """
    how = algorithm.priorities
    if how.kind != "factors":
        return
    unknown = [factor for factor in how.factors if factor not in FACTORS]
    if unknown or not how.factors or len(set(how.factors)) < len(how.factors):
        raise ValueError(f"priorities: expected different ones of {', '.join(FACTORS)}, got {list(how.factors)}")
    if algorithm.memory != "replay":
        raise ValueError('priorities: an algorithm with memory = "rollouts" learns from each row once and draws none')
    judged = [factor for factor in how.factors if factor in _APPRAISED]
    if judged and not callable(getattr(algorithm, "appraise", None)):
        raise ValueError(f"priorities: {' and '.join(judged)} need an algorithm with the verb appraise")


def derives_many(algorithm: Any) -> Callable[[Any, Array], Any] | None:
    """The verb `derive_many` of an algorithm; None where it has none, or where what overrides `derive` does not."""
    for members in (getattr(algorithm, "__dict__", {}), *map(vars, type(algorithm).__mro__)):
        if "derive_many" in members:
            return algorithm.derive_many  # type: ignore[no-any-return]  # an algorithm is typed Any
        if "derive" in members:
            return None
    return None


class Memorizer:
    """Keeps a memory for one learner.

    Args:
        plan: sizes and seeds.
        algorithm: says what is derived from a segment of rows, how many updates new rows are worth, and how to draw.
        memory: `memory.replay.ReplayMemory` or `memory.rollouts.RolloutMemory`.
        layout: columns of a row.
        lanes: one per executor, in order.
        weights: where published weights come from, for priorities that are made of factors.
        store: where the algorithm's counts are kept, and where a predecessor's may lie; None: nowhere.

    Raises:
        ValueError: the algorithm's priorities cannot be had (`check_priorities`), or there are no weights to be read.
    """

    def __init__(
        self,
        plan: MemorizerPlan,
        *,
        algorithm: Any,
        memory: Any,
        layout: RowLayout,
        lanes: Sequence[Lane],
        weights: Weights | None = None,
        store: Store | None = None,
    ) -> None:
        check_priorities(algorithm)
        self._judged = [f for f in FACTORS if f in _APPRAISED and f in getattr(algorithm.priorities, "factors", ())]
        if self._judged and weights is None:
            raise ValueError(f"priorities: {' and '.join(self._judged)} need published weights to be read")
        self._weights, self._version = weights, 0
        self._flat = np.zeros(sum(int(np.prod(shape)) for _, shape in algorithm.parameters), dtype=np.float32)
        self._share: tuple[tuple[int, int], Array] | None = None
        self._between_s, self._late = 0.0, 0
        self.plan = plan
        self.algorithm = algorithm
        self._derive_many = derives_many(algorithm)
        self.memory = memory
        self._lanes = lanes
        self._block = bytearray(layout.nbytes(plan.block_rows))
        self._rows = layout.views(self._block, plan.block_rows)
        self._draw_seed = derive_seed(plan.seed, "memorizer.draw")
        self.owed = 0
        self._store = store
        if memory.kind == "replay" and store is not None and (found := store.find(memory.phases)) is not None:
            take_up(algorithm, found[1])
        self._begin_moments()
        for index, lane in enumerate(lanes):
            lane.seek(memory.position(index))

    def _begin_moments(self) -> None:
        """Begin with the moments in the run's first weights, if nothing is counted yet."""
        if self._weights is None or self.memory.kind != "replay" or not getattr(self.algorithm, "moment_entries", 0):
            return
        if self.memory.moments()[-1] or not self._weights.latest():
            return
        if self._weights.read(self._flat) is None:
            raise MlxeError("memorizer starting: expected to read the published weights whole")
        mean, variance, rows = self.algorithm.moments_in(self._flat)
        if rows >= 1:
            self.memory.begin_moments(mean, variance, round(rows))

    def ingest(self, *, upto: Sequence[int] | None = None, settle: dict[str, Any] | None = None) -> dict[str, Any]:
        """Take in all that is committed, lane after lane, and give the room back.

        Args:
            upto: take nothing from these positions on, one for each lane; None: all there is.
            settle: the plan that the learner has just used. Its priorities come first, because a new row's priority
                follows from them: what is drawn next does not depend on how early rows are taken in.

        Returns:
            `rows`, `segments`, `dropped`; `positions`, of the block of each lane that is to come next; and `corrupt`,
            the blocks that failed their checks: `{"lane", "sequence", "detail"}` each.
        """
        total: dict[str, Any] = {"rows": 0, "segments": 0, "dropped": 0, "corrupt": []}
        began_s = time.monotonic()
        if settle and settle.get("updates"):
            self._late += self.memory.settle(settle)
        for index, lane in enumerate(self._lanes):
            # What is committed while we read waits for the next call: one busy executor must not keep us here.
            for _ in range(lane.backlog()):
                if not self.memory.room(index) or (upto is not None and lane.position == upto[index]):
                    break
                sequence = lane.position
                try:
                    block = lane.read(self._block)
                except CorruptRecord as error:
                    self.memory.set_aside(index, sequence, self.algorithm.derive, derive_many=self._derive_many)
                    lane.release(lane.skip())
                    total["corrupt"].append({"lane": index, "sequence": sequence, "detail": str(error)})
                    continue
                if block is None:
                    break
                rows = {name: column[: block.count] for name, column in self._rows.items()}
                done = self.memory.ingest(
                    index,
                    block.sequence,
                    block.epoch,
                    rows,
                    self.algorithm.derive,
                    drop_open=self.plan.redo,
                    alike=self.plan.alike,
                    derive_many=self._derive_many,
                )
                lane.release(block.sequence)
                total["rows"] += done.rows
                total["segments"] += done.segments
                total["dropped"] += done.dropped
        self._between_s += time.monotonic() - began_s
        total["positions"] = [self.memory.position(index) for index in range(len(self._lanes))]
        return total

    # -- state, between two plans -------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Take in what is committed, then tell all there is to keep.

        Blocks for which there is no room in the memory stay in their lanes and are told too, so that every committed
        row is kept exactly once. The memory itself is told as views, which change with the next call of any verb.

        Returns:
            Arrays by name: `memory.*`, `waiting.<lane>` (k, bytes of a block), `algorithm.*`, and what the present
            learning phase draws by. And `ingested`, as from `ingest`, and `waiting`: for each lane `epoch` and `count`
            of each block.

        Raises:
            CorruptRecord: a block that waits cannot be read, so that not all there is can be kept.
        """
        ingested = self.ingest()
        arrays = {f"memory.{name}": view for name, view in self.memory.raw().items()}
        waiting: list[list[dict[str, int]]] = []
        for index, lane in enumerate(self._lanes):
            try:
                blocks, about = self._waiting(lane)
            finally:
                lane.seek(self.memory.position(index))
            waiting.append(about)
            if blocks:
                arrays[f"waiting.{index}"] = np.stack(blocks)
        if callable(getattr(self.algorithm, "state", None)):
            arrays |= {f"algorithm.{name}": array for name, array in self.algorithm.state().items()}
        if self._share is not None:
            arrays |= {"share.moment": np.array(self._share[0]), "share": self._share[1]}
        return arrays, {"ingested": ingested, "waiting": waiting}

    def restore(self, state: dict[str, Array]) -> dict[str, Any]:
        """Go on with what `state` told, but for the memory and the lanes, which were there before this was made.

        Returns:
            `exact`: whether the algorithm's own counts could be taken up too.
        """
        expect_numbers("memorizer", state)
        if "share" in state:
            expect_counts("memorizer", state, ["share.moment"])
            phases, segments = state["share.moment"].tolist()
            self._share = ((phases, segments), np.array(state["share"]))
        exact = take_up(self.algorithm, state)
        if self.memory.kind == "replay":
            self._keep(self.memory.phases)
        return {"exact": exact}

    def _keep(self, phase: int) -> None:
        """Keep what the algorithm has counted, as of the beginning of a learning phase, for a successor."""
        if self._store is not None and resumes(self.algorithm) and (state := self.algorithm.state()):
            self._store.keep(phase, {PREFIX + name: array for name, array in state.items()}, spare=self.memory.phases)

    def _waiting(self, lane: Lane) -> tuple[list[Array], list[dict[str, int]]]:
        """Copies of the blocks that are still in a lane, oldest first."""
        blocks: list[Array] = []
        about: list[dict[str, int]] = []
        for _ in range(lane.backlog()):
            block = lane.read(self._block)
            if block is None:
                break
            blocks.append(np.frombuffer(self._block, np.uint8).copy())
            about.append({"epoch": block.epoch, "count": block.count})
        return blocks, about

    def memorize(
        self,
        *,
        most_updates: int | None = None,
        settle: dict[str, Any] | None = None,
        upto: Sequence[int] | None = None,
        call: int = 0,
        lane: int | None = None,
    ) -> dict[str, Any]:
        """Take in what is committed and draw the next plan.

        Args:
            most_updates: draw at most this many minibatches now and keep owing the rest; None: all that are owed.
            settle: the plan that the learner has just used.
            upto: as of `ingest`.
            call: number of this call, from 1; asked again with the number of the call before, whose answer was lost
                with a predecessor, it draws no other plan. 0: it is not asked again.
            lane: draw one rollout of this lane, or a plan of all rows that this lane's worker learns from; None: the
                learner does.

        Returns:
            The plan's address for `Learner.learn`, with `ingested` (as from `ingest`), `owed`, `held`, `start_ns`,
            `seconds`, and `ingest_seconds`, which `ingest` alone took since the plan before. Its `updates` is 0 when
            nothing is to be learned now.
        """
        start_ns = time.monotonic_ns()
        between_s = self._between_s
        ingested = self.ingest(upto=upto, settle=settle)
        if self.memory.kind == "rollouts":
            plan = self._draw_rollouts(lane)
        else:
            plan = self.memory.drawn_for(call, lane) or self._draw_batches(most_updates, call, lane)
            self.owed = self.memory.owed
        late, self._late, self._between_s = self._late, 0, 0.0
        return {
            **plan,
            "ingested": ingested,
            "owed": self.owed,
            "held": len(self.memory),
            "late_priorities": late,
            "mended_priorities": getattr(self.memory, "mended", 0),
            "start_ns": start_ns,
            "ingest_seconds": between_s,
            "seconds": (time.monotonic_ns() - start_ns) / 1e9,
        }

    def _draw_rollouts(self, lane: int | None) -> dict[str, Any]:
        plan: dict[str, Any]
        if lane is not None:
            plan = self.memory.draw(1, lane)
            self.owed = self.memory.ready
            return plan
        if rows := getattr(self.algorithm, "rows_per_update", 0):
            plan = self.memory.draw_rows(rows, whole=self.plan.rollouts_per_update is None)
            self.owed = max(len(self.memory) // rows, int(self.memory.is_full))
            return plan
        plan = self.memory.draw(self.plan.rollouts_per_update or max(1, self.memory.ready))
        self.owed = self.memory.ready
        return plan

    def _draw_batches(self, most_updates: int | None, call: int, lane: int | None) -> dict[str, Any]:
        memory = self.memory
        rows, segments = memory.fresh
        if segments:
            due = self.algorithm.updates_due(rows=len(memory), new_rows=rows, new_segments=segments)
            self._keep(memory.phases + 1)
            memory.begin_phase(int(due))
        self.owed = memory.owed
        updates = min(self.owed, self.plan.plan_updates, most_updates or self.plan.plan_updates)
        if not updates or not len(memory):
            return {"slot": 0, "updates": 0, "rows": 0}
        how = self.algorithm.priorities
        plan: dict[str, Any] = memory.draw(
            self._draw_seed,
            updates,
            max(1, self.algorithm.batch_rows // self.algorithm.window),
            exponent=how.exponent if how.kind == "td" else 0.0,
            beta=how.correction_at(sum(lane["rows"] for lane in memory.ledger())),
            share=self.probabilities() if how.kind == "factors" else None,
            call=call,
            lane=lane,
            is_local=self.plan.is_local,
        )
        return plan

    # -- priorities made of factors ---------------------------------------------------------------------------------

    def probabilities(self) -> Array:
        """With what probability each row of `memory.live()` (N,) is drawn first in this learning phase.

        Made once for each phase: whatever the schedule, the memory changes only between two of them.

        Raises:
            MlxeError: nothing is published yet, or `appraise` did not return a finite number for each row.
        """
        moment = (self.memory.phases, self.memory.segments)
        if self._share is None or self._share[0] != moment:
            factors = self._factors()
            named = [factors[name] for name in self.algorithm.priorities.factors]
            self._share = (moment, maths.probabilities(named, self.exponent))
        return self._share[1]

    @property
    def exponent(self) -> float:
        """The priorities' exponent in this learning phase: it grows with each, for each executor, up to 1."""
        how, phase = self.algorithm.priorities, max(0, self.memory.phases - 1)
        return float(min(1.0, how.exponent + how.exponent_growth * len(self._lanes) * phase))

    def _factors(self) -> dict[str, Array]:
        factors = {"age": maths.age_priority(self.memory.ages())}
        if self._judged:
            self._take_weights()
            said = self._appraised()
            if "risk" in self._judged:
                factors["risk"] = maths.risk_priority(said["return"])
            if "td" in self._judged:
                factors["td"] = maths.td_priority(said["td_error"])
        return factors

    def _take_weights(self) -> None:
        assert self._weights is not None  # noqa: S101 - refused when this was made
        if self._weights.latest() == self._version > 0:
            return
        version = self._weights.read(self._flat)
        if version is not None:
            self.algorithm.load(self._flat)
            self._version = version
        elif not self._version:
            raise MlxeError("memorizer drawing: expected published weights to appraise rows by, found none")

    def _appraised(self) -> dict[str, Array]:
        """Return what the algorithm says of every row, in pieces that stay in the caches."""
        live = self.memory.live()
        wanted = [_APPRAISED[name] for name in self._judged]
        said = {name: np.empty(len(live)) for name in wanted}
        row_bytes = sum(column.row_bytes for column in self.memory.shape.row_layout.columns)
        together = max(1, min(APPRAISED_AT_ONCE, APPRAISED_BYTES // row_bytes))
        for start in range(0, len(live), together):
            piece = live[start : start + together]
            answer = self.algorithm.appraise(self.memory.columns(piece))
            for name in wanted:
                numbers = np.asarray(answer[name])
                if numbers.shape != piece.shape or not np.isfinite(numbers).all():
                    raise MlxeError(
                        f"memorizer drawing: expected appraise to return {name} as {len(piece)} finite numbers, "
                        f"got an array of shape {numbers.shape}"
                    )
                said[name][start : start + len(piece)] = numbers
        return said
