"""The main loop of a run: the schedule, what watches beside it, and the last checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mlxe_async.ipc.process import Process
from mlxe_async.schedules import POLL_S, schedule_of
from mlxe_async.settings import Settings
from mlxe_async.supervisor.budget import Bell, Budget
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.resume_roles import restore_roles
from mlxe_async.supervisor.checkpointing.whole import FINAL_LIMIT_S, Keeper
from mlxe_async.supervisor.event_log import Story
from mlxe_async.supervisor.recording.replay import Replay
from mlxe_async.supervisor.staff import Staff
from mlxe_async.supervisor.startup.run_files import Resumption

FINISH_LIMIT_S = 1.5
ROUND_LIMIT_S = 60.0  # where a round belongs to the result, and nobody waits for the command to end


class MainLoop:
    """Runs the schedule until the budget has run out.

    Args:
        settings: the run's settings.
        staff: processes and handles, started.
        story: tells the log.
        budget: says when to stop.
        bell: rung whenever something changed.
        keeper: makes whole checkpoints.
        point: what the run goes on from, None for a new one.
        resumption: told that the roles have taken that up; None for a new one.
        replay: the recording to be followed instead of the schedule, if any.
        digest: of the published weights.
        flavour: of the schedule, where it has one.
    """

    def __init__(
        self,
        settings: Settings,
        staff: Staff,
        story: Story,
        budget: Budget,
        bell: Bell,
        *,
        keeper: Keeper,
        point: ResumePoint | None,
        resumption: Resumption | None,
        replay: Replay | None,
        digest: Callable[[], str | None],
        flavour: str | None,
    ) -> None:
        self._flavour = flavour
        self._settings, self._staff, self._story, self._budget, self._bell = settings, staff, story, budget, bell
        self._keeper, self._point, self._replay, self._digest = keeper, point, replay, digest
        self._resumption = resumption
        self._is_whole = False
        self.is_saved = False
        "The last checkpoint is whole and on disk."
        self.replayed: str | None = None
        "Of a replay, how far it came and that the weights are the same."

    async def run(self, processes: Sequence[Process], beside: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run the schedule to its end, and `beside` as long as that takes; then save all."""
        async with asyncio.TaskGroup() as group:
            watchers = [group.create_task(process.run()) for process in processes]
            watchers += [group.create_task(work) for work in beside]
            self._budget.began = time.monotonic()
            if self._point is not None:
                self._budget.restore(self._point.state["budget"])
            self._keeper.note_saved()
            schedule = group.create_task(self._follow())
            stopped = group.create_task(self._bell.wait_until(lambda: self._budget.reason is not None))
            await asyncio.wait([schedule, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not schedule.done():
                # What is under way may be finished, in a bounded time.
                if self._staff.crew.deterministic:
                    asked = group.create_task(self._bell.wait_until(lambda: self._budget.at_once))
                    await asyncio.wait([schedule, asked], timeout=ROUND_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
                    asked.cancel()
                looking = 2 * POLL_S if self._flavour == "as_published" else 0.0
                await asyncio.wait([schedule], timeout=FINISH_LIMIT_S + looking)
            for task in (schedule, stopped):
                task.cancel()
            await asyncio.wait([schedule])
            await self._save_all()
            for task in watchers:
                task.cancel()

    async def _follow(self) -> None:
        staff, point = self._staff, self._point
        if point is not None:
            await restore_roles(point, staff.homes, self._story, free_running=staff.crew.free_running)
            if self._resumption is not None:
                self._resumption.tell(exact=point.exact)
            self._is_whole = True
            if not staff.crew.free_running and not staff.crew.excused:
                # The last test may have been cut short; if it was not, nothing is due.
                await staff.evaluator.evaluate(staff.crew.counters.version)
        self._is_whole = True
        if self._replay is not None:
            await self._replay.follow(staff.homes, self._story, staff.crew.counters, self._bell)
            self.replayed = self._replay.verdict(self._digest())
            return
        who_waits = schedule_of(self._settings.schedule.kind, self._flavour)
        await who_waits(staff.executors, staff.memorizer, staff.learner, staff.evaluator, self._budget)

    async def _save_all(self) -> None:
        """The last checkpoint: a whole one, if all is known of what was done so far."""
        if self._is_whole and self._keeper.at_rest:
            try:
                async with asyncio.timeout(FINAL_LIMIT_S):
                    self.is_saved = await self._keeper.save()
            except TimeoutError:
                self._story.warn(
                    f"the last whole checkpoint was not complete after {FINAL_LIMIT_S:g} s: only the newest weights "
                    "are saved, and the run can go on from the whole checkpoint before"
                )
        else:
            self._story.warn(
                "stopped in the middle of a round: the newest weights are saved, and the run can go on from the whole "
                "checkpoint before"
            )
