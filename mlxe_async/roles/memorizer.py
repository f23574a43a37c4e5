"""The memorizer: takes committed blocks out of the lanes, keeps them, and draws what the learner is to learn from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlxe_async.errors import CorruptRecord
from mlxe_async.rows import RowLayout
from mlxe_async.seeds import derive_seed


class Lane(Protocol):
    """The reading end of a lane, `ipc.lanes.LaneReader`."""

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
        chunk_rows: most rows in one block of a lane.
        redo: what a dead executor left unfinished will be generated again, alike (so it is dropped, not closed).
        rollouts_per_update: whole rollouts that one update takes (rollout memory only).
        plan_updates: most minibatches in one plan (replay memory only).
    """

    seed: int
    chunk_rows: int
    redo: bool
    rollouts_per_update: int
    plan_updates: int


class Memorizer:
    """Keeps a memory for one learner.

    Args:
        plan: sizes and seeds.
        algorithm: says what is derived from a stretch of rows, how many updates new rows are worth, and how to draw.
        memory: `memory.replay.ReplayMemory` or `memory.rollouts.RolloutMemory`.
        layout: columns of a row.
        lanes: one per executor, in order.
    """

    def __init__(
        self, plan: MemorizerPlan, *, algorithm: Any, memory: Any, layout: RowLayout, lanes: Sequence[Lane]
    ) -> None:
        self.plan = plan
        self.algorithm = algorithm
        self.memory = memory
        self._lanes = lanes
        self._block = bytearray(layout.nbytes(plan.chunk_rows))
        self._rows = layout.views(self._block, plan.chunk_rows)
        self._draw_seed = derive_seed(plan.seed, "memorizer.draw")
        self._new_rows = self._new_segments = 0
        self.owed = 0
        for index, lane in enumerate(lanes):
            lane.seek(memory.position(index))

    def ingest(self) -> dict[str, Any]:
        """Take in all that is committed, lane after lane, and give the room back.

        Returns:
            `rows`, `segments`, `dropped` and `corrupt`, the blocks that failed their checks: `{"lane", "sequence",
            "detail"}` each.
        """
        total: dict[str, Any] = {"rows": 0, "segments": 0, "dropped": 0, "corrupt": []}
        for index, lane in enumerate(self._lanes):
            # What is committed while we read waits for the next call: one busy executor must not keep us here.
            for _ in range(lane.backlog()):
                if not self.memory.room(index):
                    break
                sequence = lane.position
                try:
                    block = lane.read(self._block)
                except CorruptRecord as error:
                    self.memory.set_aside(index, sequence, self.algorithm.derive)
                    lane.release(lane.skip())
                    total["corrupt"].append({"lane": index, "sequence": sequence, "detail": str(error)})
                    continue
                if block is None:
                    break
                rows = {name: column[: block.count] for name, column in self._rows.items()}
                done = self.memory.ingest(
                    index, block.sequence, block.epoch, rows, self.algorithm.derive, drop_open=self.plan.redo
                )
                lane.release(block.sequence)
                total["rows"] += done.rows
                total["segments"] += done.segments
                total["dropped"] += done.dropped
        self._new_rows += total["rows"]
        self._new_segments += total["segments"]
        return total

    def memorize(self, *, most_updates: int | None = None, settle: dict[str, Any] | None = None) -> dict[str, Any]:
        """Take in what is committed and draw the next plan.

        Args:
            most_updates: draw at most this many minibatches now and keep owing the rest; None: all that are owed.
            settle: the plan that the learner has just used.

        Returns:
            The plan's address for `Learner.learn`, with `ingested` (as from `ingest`), `owed`, `held`, `start_ns`,
            `seconds`. Its `updates` is 0 when nothing is to be learned now.
        """
        start_ns = time.monotonic_ns()
        late = self.memory.settle(settle) if settle and settle.get("updates") else 0
        ingested = self.ingest()
        plan = self._draw_rollouts() if self.memory.kind == "rollouts" else self._draw_batches(most_updates)
        return {
            **plan,
            "ingested": ingested,
            "owed": self.owed,
            "held": len(self.memory),
            "late_priorities": late,
            "start_ns": start_ns,
            "seconds": (time.monotonic_ns() - start_ns) / 1e9,
        }

    def _draw_rollouts(self) -> dict[str, Any]:
        plan: dict[str, Any] = self.memory.draw(self.plan.rollouts_per_update)
        self.owed = self.memory.ready
        return plan

    def _draw_batches(self, most_updates: int | None) -> dict[str, Any]:
        if self._new_segments:
            self.owed += int(
                self.algorithm.updates_due(
                    rows=len(self.memory), new_rows=self._new_rows, new_segments=self._new_segments
                )
            )
            self._new_rows = self._new_segments = 0
        updates = min(self.owed, self.plan.plan_updates, most_updates or self.plan.plan_updates)
        if not updates or not len(self.memory):
            return {"slot": 0, "updates": 0, "rows": 0}
        how = self.algorithm.priorities
        plan: dict[str, Any] = self.memory.draw(
            self._draw_seed,
            updates,
            max(1, self.algorithm.batch_rows // self.algorithm.window),
            exponent=how.exponent if how.kind == "td" else 0.0,
            beta=how.correction if how.kind == "td" else 0.0,
        )
        self.owed -= plan["updates"]
        return plan
