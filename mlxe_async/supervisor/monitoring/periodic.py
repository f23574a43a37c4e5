"""Periodic work beside the schedule: status file, account of rows, draining of lanes, the time limit."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

from mlxe_async.errors import ResourceError, RunFailed
from mlxe_async.logs import events
from mlxe_async.supervisor.assembly import Assembly
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.monitoring.affinity import Affinity
from mlxe_async.supervisor.monitoring.loop_lag import starved, watch_lag
from mlxe_async.supervisor.monitoring.pace import tell_times
from mlxe_async.supervisor.monitoring.status import progress_of, tell_ledger
from mlxe_async.supervisor.monitoring.stragglers import Stragglers
from mlxe_async.supervisor.waiting import every

FIRST_LEDGER_S = 1.0
MISSED_AGAIN_S = 60.0


class Periodic:
    """The endless tasks of one run; each ends by being cancelled or by what it raises.

    Args:
        run: what the run consists of.
        parts: its processes and handles.
    """

    def __init__(self, run: RunContext, parts: Assembly) -> None:
        self._run, self._parts = run, parts
        self._missed_again_at = 0.0

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """All that goes on beside the schedule, or beside the recording that is followed instead."""
        run, parts = self._run, self._parts
        tasks = [self.keep_status(), self.keep_ledger(), self.keep_time(), watch_lag(run.log)]
        tasks.append(starved(parts, run.log))
        if run.replay is None:
            tasks.append(self.keep_draining())
        if run.blueprint.learner_threads == 1 and run.settings.learner.own_core:
            tasks.append(Affinity(run.settings.learner.own_core, run.measures.living, run.log).keep())
        if run.settings.schedule.kind != "serial":
            pages = [parts.page_of(executor.index) for executor in parts.executors]
            tasks.append(Stragglers(parts.executors, pages, run.log, run.blueprint.envs).watch())
        return tasks

    def progress(self) -> dict[str, Any]:
        """Return how far the run is; see `Supervisor.progress`."""
        run = self._run
        run.counters.episodes_started = self._parts.episodes_started()
        return progress_of(run.counters, run.budget, run.log, self._parts.memorizer, run.measures.cpu.by_name())

    async def keep_status(self) -> None:
        """Write the status again and again, and see whether folder and executors are still there.

        Raises:
            RunFailed: too few executors are left.
        """
        async for _ in every(self._run.settings.logs.status_interval_s):
            self._run.measures.look_at_cpu()
            self.check_folder()
            self.write_status("running")
            self._run.bell.ring()  # it may be time to save, which nothing else would tell a learner that waits
            living = sum(1 for executor in self._parts.executors if executor.lost is None)
            if living < (least := self._run.blueprint.least_executors):
                lost = next(executor.lost for executor in self._parts.executors if executor.lost)
                key = (
                    "min_executors" if least == self._run.settings.schedule.min_executors else 'gradients = "executors"'
                )
                raise RunFailed(f"expected at least {least} executors (schedule.{key}), {living} are left; {lost}")

    async def keep_ledger(self) -> None:
        """Tell the account of rows, and which process waits for which, again and again."""
        await asyncio.sleep(min(FIRST_LEDGER_S, self._run.settings.logs.ledger_interval_s))
        self.tell_ledger()
        async for _ in every(self._run.settings.logs.ledger_interval_s):
            self.tell_ledger()
            self.tell_times()

    async def keep_draining(self) -> None:
        """Long rollouts commit in the middle; then the lanes get their room back before anybody waits."""
        while True:
            await self._parts.drain.wait()
            self._parts.drain.clear()
            await self._parts.memorizer.ingest()

    async def keep_time(self) -> None:
        """Stop the run when its seconds are over."""
        if self._run.settings.stop.seconds is not None:
            await asyncio.sleep(max(0.0, self._run.settings.stop.seconds - self._run.budget.seconds))
            self._run.budget.finish("seconds", at_once=True)
            return
        await asyncio.Event().wait()

    def check_folder(self) -> bool:
        """Return whether the run folder is where it was; told loudly when it is not, once a minute."""
        if self._run.folder.is_there:
            return True
        if time.monotonic() >= self._missed_again_at:
            self._missed_again_at = time.monotonic() + MISSED_AGAIN_S
            self._run.log.warn(
                f"the run folder {self._run.folder.path} cannot be found any more: it was removed or renamed while the "
                "run goes on; nothing can be saved there, and the run will end with exit code 4",
                loud=True,
            )
        return False

    def write_status(self, state: str) -> None:
        """Replace the status file."""
        if not self._run.folder.is_there:
            return
        try:
            about = {"state": state, "pid": os.getpid(), "run": self._run.folder.name}
            self._run.folder.write_status({**about, **self.progress()})
        except ResourceError as error:
            self._run.log.warn(str(error))

    def tell_times(self) -> None:
        """Tell how each process has spent its time, and what limits the pace."""
        tell_times(self._run, self._parts)

    def tell_ledger(self) -> None:
        """Tell the account of rows."""
        run = self._run
        tell_ledger(run.blueprint, run.segments, self._parts.memorizer, run.log, former=run.former_rows)
        if self._parts.learner.pushes is not None:
            run.log.emit(events.Pushes(**asdict(self._parts.learner.pushes)))
