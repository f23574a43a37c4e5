"""What goes on beside the schedule as long as a run lasts: status, account of rows, draining of lanes, the clock."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from mlxe_async.errors import ResourceError, RunFailed
from mlxe_async.ipc.segments import Segment
from mlxe_async.settings import Settings
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.supervisor.budget import Bell, Budget
from mlxe_async.supervisor.event_log import Story
from mlxe_async.supervisor.monitoring.status import tell_ledger
from mlxe_async.supervisor.staff import Staff
from mlxe_async.supervisor.startup.blueprint import Blueprint
from mlxe_async.supervisor.waiting import every

FIRST_LEDGER_S = 1.0
MISSED_AGAIN_S = 60.0


class Housekeeping:
    """The endless tasks of one run; each ends by being cancelled or by what it raises.

    Args:
        settings: the run's settings.
        folder: the run's folder.
        blueprint: sizes, for the account of rows.
        segments: the shared memory, by name.
        staff: who is there.
        story: tells the log.
        budget: told when the time is over.
        bell: rung now and then.
        progress: how far the run is.
        look_at_cpu: notes how much CPU time each process has used.
        former_rows: taken in by a memory that this run does not go on with.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        blueprint: Blueprint,
        segments: Mapping[str, Segment],
        staff: Staff,
        *,
        story: Story,
        budget: Budget,
        bell: Bell,
        progress: Callable[[], dict[str, Any]],
        look_at_cpu: Callable[[], None],
        former_rows: int,
    ) -> None:
        self._settings, self._folder, self._blueprint, self._segments = settings, folder, blueprint, segments
        self._staff, self._story, self._budget, self._bell = staff, story, budget, bell
        self._progress, self._look_at_cpu, self._former_rows = progress, look_at_cpu, former_rows
        self._missed_again_at = 0.0

    async def keep_status(self) -> None:
        """Write the status again and again, and see whether folder and executors are still there.

        Raises:
            RunFailed: too few executors are left.
        """
        async for _ in every(self._settings.logs.status_interval_s):
            self._look_at_cpu()
            self.check_folder()
            self.write_status("running")
            self._bell.ring()  # it may be time to save, which nothing else would tell a learner that waits
            living = sum(1 for executor in self._staff.executors if executor.lost is None)
            if living < self._settings.schedule.min_executors:
                lost = next(executor.lost for executor in self._staff.executors if executor.lost)
                raise RunFailed(
                    f"expected at least {self._settings.schedule.min_executors} executors (schedule.min_executors), "
                    f"{living} are left; {lost}"
                )

    async def keep_ledger(self) -> None:
        """Tell the account of rows and who waits for whom, again and again."""
        await asyncio.sleep(min(FIRST_LEDGER_S, self._settings.logs.ledger_interval_s))
        self.tell_ledger()
        async for _ in every(self._settings.logs.ledger_interval_s):
            self.tell_ledger()
            self._story.emit(self._story.bottleneck(len(self._staff.executors)))

    async def keep_draining(self, drain: asyncio.Event) -> None:
        """Long rollouts commit in the middle; then the lanes get their room back before anybody waits."""
        while True:
            await drain.wait()
            drain.clear()
            await self._staff.memorizer.ingest()

    async def keep_time(self) -> None:
        """Stop the run when its seconds are over."""
        if self._settings.stop.seconds is not None:
            await asyncio.sleep(max(0.0, self._settings.stop.seconds - self._budget.seconds))
            self._budget.finish("seconds", at_once=True)
            return
        await asyncio.Event().wait()

    def check_folder(self) -> bool:
        """Whether the run folder is where it was; told loudly when it is not, once a minute."""
        if self._folder.is_there:
            return True
        if time.monotonic() >= self._missed_again_at:
            self._missed_again_at = time.monotonic() + MISSED_AGAIN_S
            self._story.warn(
                f"the run folder {self._folder.path} cannot be found any more: it was removed or renamed while the run "
                "goes on; nothing can be saved there, and the run will end with exit code 4",
                loud=True,
            )
        return False

    def write_status(self, state: str) -> None:
        """Replace the status file."""
        if not self._folder.is_there:
            return
        try:
            about = {"state": state, "pid": os.getpid(), "run": self._folder.name}
            self._folder.write_status({**about, **self._progress()})
        except ResourceError as error:
            self._story.warn(str(error))

    def tell_ledger(self) -> None:
        """Tell the account of rows."""
        tell_ledger(self._blueprint, self._segments, self._staff.memorizer, self._story, former=self._former_rows)
