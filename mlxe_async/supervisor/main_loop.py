"""The main loop of a run: the schedule, what watches beside it, and the last checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from mlxe_async.ipc.processes.process import Process
from mlxe_async.roles.lessons import Lessons
from mlxe_async.schedules import POLL_S, schedule_of
from mlxe_async.supervisor.assembly import Assembly
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.ending import digest_of
from mlxe_async.supervisor.plan.budget import Budget
from mlxe_async.supervisor.startup.restore import restore_roles
from mlxe_async.supervisor.whole_checkpoints import FINAL_LIMIT_S, WholeCheckpoints

FINISH_LIMIT_S = 1.5
ROUND_LIMIT_S = 60.0  # for a round of a deterministic schedule: it belongs to the result


class Rounds:
    """The budget as a schedule sees it: between two of its rounds the run may save itself.

    Args:
        budget: counts and says when to stop.
        checkpoints: makes whole checkpoints.
        lessons: decides between rounds on stages and items; None: there are none.
    """

    def __init__(self, budget: Budget, checkpoints: WholeCheckpoints, lessons: Lessons | None = None) -> None:
        self._budget, self._checkpoints, self._lessons = budget, checkpoints, lessons

    @property
    def remaining(self) -> bool:
        """Whether to go on."""
        return self._budget.remaining

    def spend(self, rollouts: Iterable[Any]) -> None:
        """Count finished rollouts."""
        self._budget.spend(rollouts)
        if self._lessons is not None:
            self._lessons.end_round()

    async def boundary(self) -> None:
        """The run may save itself now."""
        await self._checkpoints.at_boundary()
        if self._lessons is not None:
            self._lessons.begin_round()


class MainLoop:
    """Runs the schedule until the budget has run out.

    Args:
        run: what the run consists of.
        parts: its processes and handles, started.
        checkpoints: makes whole checkpoints.
    """

    def __init__(self, run: RunContext, parts: Assembly, checkpoints: WholeCheckpoints) -> None:
        self._run, self._parts, self._checkpoints = run, parts, checkpoints
        self._is_whole = False
        self.is_saved = False
        self.not_whole: str | None = None
        "Why the last checkpoint is not a whole one, once it was tried."
        "The last checkpoint is whole and on disk."
        self.replayed: str | None = None
        "Of a replay, how far it came and that the weights are the same."

    async def run(self, processes: Sequence[Process], beside: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run the schedule to its end, and `beside` as long as that takes; then save all."""
        budget, bell = self._run.budget, self._run.bell
        async with asyncio.TaskGroup() as group:
            watchers = [group.create_task(process.run()) for process in processes]
            watchers += [group.create_task(work) for work in beside]
            budget.began = time.monotonic()
            if self._run.point is not None:
                budget.restore(self._run.point.state["budget"])
            self._parts.due.note_saved()
            schedule = group.create_task(self._follow())
            stopped = group.create_task(bell.wait_until(lambda: budget.reason is not None))
            await asyncio.wait([schedule, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not schedule.done():
                # A round that was begun is finished; other work has a bounded time.
                if self._parts.context.deterministic:
                    # Its calls have limits of their own, and a signal ends the wait.
                    limit_s = ROUND_LIMIT_S if budget.reason == "seconds" else None
                    asked = group.create_task(bell.wait_until(lambda: budget.at_once))
                    await asyncio.wait([schedule, asked], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                    asked.cancel()
                looking = 2 * POLL_S if self._run.blueprint.traits.flavour == "as_published" else 0.0
                await asyncio.wait([schedule], timeout=FINISH_LIMIT_S + looking)
            for task in (schedule, stopped):
                task.cancel()
            await asyncio.wait([schedule])
            await self._save_all()
            for task in watchers:
                task.cancel()

    async def _follow(self) -> None:
        run, parts = self._run, self._parts
        if run.point is not None:
            await restore_roles(run.point, parts.by_role, run.log, free_running=parts.context.free_running)
            if run.files.resumption is not None:
                run.files.resumption.tell(exact=run.point.exact)
            self._is_whole = True
            if not parts.context.free_running and not parts.context.excused:
                # The last test may have been cut short; if it was not, nothing is due.
                await parts.evaluator.evaluate(run.counters.version)
        self._is_whole = True
        if run.replay is not None:
            await run.replay.follow(parts.by_role, run.log, run.counters, run.bell)
            self.replayed = run.replay.verdict(digest_of(run.published()))
            return
        who_waits = schedule_of(run.settings.schedule.kind, run.blueprint.traits.flavour)
        rounds = Rounds(run.budget, self._checkpoints, parts.context.lessons)
        await who_waits(parts.executors, parts.memorizer, parts.learner, parts.evaluator, rounds)

    async def _save_all(self) -> None:
        """The last checkpoint: a whole one, if all is known of what was done so far."""
        if self._is_whole and self._checkpoints.at_rest:
            try:
                async with asyncio.timeout(FINAL_LIMIT_S):
                    self.is_saved = await self._checkpoints.save()
            except TimeoutError:
                self.not_whole = f"the last whole checkpoint was not complete after {FINAL_LIMIT_S:g} s"
            else:
                if not self.is_saved:
                    self.not_whole = "the last whole checkpoint could not be saved"
        else:
            self.not_whole = "stopped in the middle of a round"
