"""The handle of the memorizer: what was committed when its process died stays in the lanes, and is taken in later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlxe_async.errors import ProcessDied
from mlxe_async.ipc.processes.process import Process
from mlxe_async.supervisor.handles.answers import INGESTED, PLAN
from mlxe_async.supervisor.handles.context import HandleContext
from mlxe_async.supervisor.recording.steps import Ended, Ingested, Memorized

_ABOUT_MEMORY = [name for name in PLAN.kind if name not in ("updates", "rows")]
"""Facts about the memory that come with a plan."""


class MemorizerHandle:
    """The memorizer.

    Args:
        process: where it lives, perhaps together with the learner.
        context: what is shared.
        updates_per_plan: minibatches drawn at a time; None: all that are owed.
        most_owed: owing more than this many, the executors wait; None: they never do.
        executors: number of executors.
    """

    def __init__(
        self,
        process: Process,
        context: HandleContext,
        *,
        updates_per_plan: int | None,
        most_owed: int | None,
        executors: int,
    ) -> None:
        self.process = process
        self.owed = self.held = 0
        self.rows_ingested = self._rows_since = self._mended = 0
        self._context = context
        self._updates_per_plan, self._most_owed, self._executors = updates_per_plan, most_owed, executors
        self._under_way = 0
        self._unseen = 0
        self._used: dict[str, Any] | None = None
        self._used_by: dict[int, dict[str, Any]] = {}
        self._drawn_in: dict[int | None, int] = {}
        "Life of the memorizer that the last plan of each lane, or of all, was drawn in."
        self._calls = 0
        self.busy = False

    def state(self) -> dict[str, Any]:
        """Facts to be kept, as of now."""
        return {
            "owed": self.owed,
            "held": self.held,
            "unseen": self._unseen,
            "rows_since": self._rows_since,
            "used": self._used,
            "calls": self._calls,
        }

    def restore(self, facts: Mapping[str, Any], rows_ingested: int) -> None:
        """Go on from there."""
        self.owed, self.held, self._unseen = facts["owed"], facts["held"], facts["unseen"]
        self._rows_since, self._used = facts["rows_since"], facts["used"]
        self._calls = facts["calls"]
        self.rows_ingested = rows_ingested

    async def keep(self, path: str) -> dict[str, Any]:
        """Have the memory written to a file, all that is committed included; see `workers.state_files.StateFiles.save`.

        Raises:
            ProcessDied: the memorizer died meanwhile.
            RemoteError: it could not be written.
        """
        rows = sum([await self._ingested(lane) for lane in [*self._used_by]])
        rows += await self._ingested() if self._used else 0
        kept: dict[str, Any] = await self.process.call("save", role="keeper", name="memorizer", path=path)
        self._take_note(kept["facts"]["ingested"])
        self._context.recorder.note(Ingested(tuple(kept["facts"]["ingested"]["positions"])))
        kept["facts"]["ingested"]["rows"] += rows
        return kept

    @property
    def has_room(self) -> bool:
        """True if another rollout may begin. A learner that lags behind is not to be buried in old experience."""
        if not self._context.free_running or self._most_owed is None:
            return True
        return self.owed < self._most_owed and self._unseen < self._executors

    def expect(self) -> None:
        """A rollout begins."""
        self._under_way += 1

    def delivered(self) -> None:
        """A rollout is committed (or came to nothing) and not yet memorized."""
        self._under_way -= 1
        self._unseen += 1

    def used(self, plan: dict[str, Any], lane: int | None = None) -> None:
        """The learner has learned from this plan, which was drawn of a lane or of all."""
        if lane is None:
            self._used = plan
        else:
            self._used_by[lane] = plan

    def given_up(self, plan: dict[str, Any], lane: int | None = None) -> None:
        """Nothing comes of a plan: the room of its rollouts is free, unless a death has made them ready again."""
        if self.process.alive and self._drawn_in.get(lane) == self.process.epoch:
            self.used(plan, lane)

    @property
    def to_settle(self) -> dict[str, Any] | None:
        """The plan that was used last, as long as its priorities are not taken in."""
        return self._used

    def took_in(self, ingested: Sequence[dict[str, Any]]) -> None:
        """An executor of the same thread had its lane read in the middle of a rollout, after what was to be settled."""
        for one in ingested:
            self._used = None
            self._take_note(one)

    async def memorize(self) -> dict[str, Any]:
        """Take in and draw; see `schedules.verbs`."""
        if self._context.free_running and not await self._context.wait_until(self._is_wanted):
            return {"updates": 0}
        if self._context.free_running and not self._has_work:
            return {"updates": 0}  # it is time to save, and nothing is learned from meanwhile
        return await self._drawn()

    async def memorize_of(self, lane: int) -> dict[str, Any]:
        """Take in, and draw for the worker of a lane: a rollout of its executor, or minibatches; one call at a time."""
        return await self._drawn(lane)

    async def _drawn(self, lane: int | None = None) -> dict[str, Any]:
        used = self._used if lane is None else self._used_by.pop(lane, None)
        self.busy = True
        self._calls += 1
        while True:
            self._unseen = 0
            try:
                plan: dict[str, Any] = await self.process.call(
                    "memorize",
                    role="memorizer",
                    check=PLAN.require,
                    most_updates=self._updates_per_plan,
                    settle=used,
                    call=self._calls,
                    lane=lane,
                )
                break
            except ProcessDied:
                self._unseen = 1
                if self._context.ending:
                    return {"updates": 0}  # and `busy` for good: what it did is not known
        self.busy, self._drawn_in[lane] = False, self.process.epoch
        ingested = plan["ingested"]
        positions = tuple(ingested["positions"])
        settled = used is not None
        self._context.recorder.note(Memorized(self._updates_per_plan, settled, plan["updates"], positions, lane))
        if lane is None:
            self._used = None
        self.owed, self.held = plan["owed"], plan["held"]
        self._take_note(ingested)
        if plan["mended_priorities"] > self._mended:
            self._context.log.warn(
                "priorities were found that are negative or no numbers; their rows are drawn as new ones are",
                "memorizer",
            )
        self._mended = plan["mended_priorities"]
        # Together with what was taken in between: how much that is depends on the moment, the sum does not.
        self._context.log.memorized(plan, self._rows_since)
        self._rows_since = 0
        self._context.bell.ring()
        for name in _ABOUT_MEMORY:  # not for the learner: the plan travels twice more
            del plan[name]
        return plan

    @property
    def _has_work(self) -> bool:
        return self._unseen > 0 or self.owed > 0

    def _is_wanted(self) -> bool:
        return self._has_work or self._context.is_checkpoint_due()

    async def ingest(self) -> None:
        """Only take in, to give the lanes their room back in the middle of long rollouts."""
        try:
            await self._ingested()
        except ProcessDied:
            # Nothing is lost: what was committed stays in the lanes, and the next call takes it in.
            self._unseen += 1

    async def _ingested(self, lane: int | None = None) -> int:
        """Take in, after the priorities of the plan that was used last, of a lane or of all; returns how many rows.

        Raises:
            ProcessDied: the memorizer died meanwhile; the next call settles the plan, once more or for the first time.
        """
        used = self._used if lane is None else self._used_by.get(lane)
        ingested = await self.process.call("ingest", role="memorizer", check=INGESTED.require, settle=used)
        if lane is not None:
            self._used_by.pop(lane, None)
        elif self._used is used:
            self._used = None
        self._context.recorder.note(Ingested(tuple(ingested["positions"]), settled=used is not None, lane=lane))
        self._take_note(ingested)
        return int(ingested["rows"])

    def _take_note(self, ingested: dict[str, Any]) -> None:
        self.rows_ingested += ingested["rows"]
        self._rows_since += ingested["rows"]
        if ingested["rows"]:
            self.process.note_progress()
        for block in ingested["corrupt"]:
            self._context.recorder.note(Ended("", "a block was damaged"))
            self._context.log.corrupt(block)
