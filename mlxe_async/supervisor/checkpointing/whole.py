"""Saving all there is of a run, so that it can go on as if nothing had happened.

It happens between two rounds of a schedule (`Budget.boundary`), or between two plans of a learner that never waits:
then learner and memory stand still, and where rounds are rounds the executors do too. Each process writes the state of
its roles to a file; the supervisor adds weights, counters and what its handles know, and renames the whole into place.

At the end of a run the same is tried once more. It may be in the middle of a round then. As long as nothing was learned
from it, that is no harm where rollouts are redone alike (`serial`, `istb`, `is`): who had delivered is excused from the
round when the run goes on, and what was under way is generated again. Under `ia` and `oa` the run goes on from there
with other episodes.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor as Pool
from pathlib import Path
from typing import Any

from mlxe_async.errors import MlxeError, ResourceError
from mlxe_async.ipc.process import Process
from mlxe_async.rows import Array
from mlxe_async.settings import Settings
from mlxe_async.storage.array_files import Written, write_arrays
from mlxe_async.supervisor.checkpointing.weights import Saver
from mlxe_async.supervisor.handles.context import Crew
from mlxe_async.supervisor.handles.evaluator import EvaluatorHandle
from mlxe_async.supervisor.handles.executor import ExecutorHandle
from mlxe_async.supervisor.handles.learner import LearnerHandle
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.waiting import first_of

OWN = "supervisor"
SUFFIX = ".safetensors"
FINAL_LIMIT_S = 60.0
FAILURES_IN_A_ROW = 3
STRETCHES = 8


class Keeper:
    """Makes whole checkpoints when they are due.

    Args:
        settings: the run's settings.
        crew: what the handles share.
        saver: numbers and writes checkpoints.
        executors: all of them.
        memorizer: keeps the memory.
        learner: holds the optimiser.
        evaluator: knows which versions passed.
        homes: name of a role -> its process.
        published: the newest version and its weights (P,), None before the first.
        round_rows: most steps that are counted from one boundary to the next, None where that is not known.
        more: further facts to keep, as of now.
        disk: where blocking work is done.
    """

    def __init__(
        self,
        settings: Settings,
        crew: Crew,
        saver: Saver,
        *,
        executors: Sequence[ExecutorHandle],
        memorizer: MemorizerHandle,
        learner: LearnerHandle,
        evaluator: EvaluatorHandle,
        homes: Mapping[str, Process],
        published: Callable[[], tuple[int, Array] | None],
        round_rows: int | None,
        more: Callable[[], dict[str, Any]],
        disk: Pool,
    ) -> None:
        self._settings, self._crew, self._saver = settings, crew, saver
        self._executors, self._memorizer = executors, memorizer
        self._learner, self._evaluator = learner, evaluator
        self._homes, self._published, self._more, self._disk = homes, published, more, disk
        self._failures = 0
        self._round_rows = round_rows
        self._boundary_steps, self._stretches = crew.counters.env_steps, deque[int](maxlen=STRETCHES)
        self.note_saved()

    def note_saved(self) -> None:
        """Count the intervals from here."""
        self._saved_at, self._saved_steps = time.monotonic(), self._crew.counters.env_steps

    async def at_boundary(self) -> None:
        """Save if it is time to."""
        steps = self._crew.counters.env_steps
        if steps > self._boundary_steps:
            self._stretches.append(steps - self._boundary_steps)
            self._boundary_steps = steps
        if self.is_due():
            await self.save()

    def is_due(self) -> bool:
        """Whether it is time to save."""
        table, steps = self._settings.checkpoint, self._crew.counters.env_steps - self._saved_steps
        waited = time.monotonic() - self._saved_at
        by_time = table.interval_s and waited >= table.interval_s and steps > 0
        by_steps = table.interval_steps and steps > 0 and steps + self._next_stretch() > table.interval_steps
        return bool(by_time or by_steps)

    def _next_stretch(self) -> int:
        """Steps that may be counted until the next boundary: what would lead past the interval is saved before it.

        Where a round may be longer than the interval, which then cannot be kept for certain, it is taken to be as long
        as the longest of the last ones.
        """
        if self._round_rows is not None and self._round_rows <= self._settings.checkpoint.interval_steps:
            return self._round_rows
        return max(self._stretches, default=1)

    @property
    def at_rest(self) -> bool:
        """Whether all is known of what was done so far, so that the run could go on from here."""
        crew = self._crew
        if self._learner.busy or self._memorizer.busy or self._published() is None:
            return False
        if crew.free_running:
            return True
        under_way = any(executor.busy for executor in self._executors)
        if crew.deterministic:
            return not under_way or self._settings.schedule.sync == "episode"
        return not under_way and not crew.delivered

    async def save(self) -> bool:
        """Save everything now; returns whether it is on disk.

        A failure is told, and the run goes on.

        Raises:
            ResourceError: it has failed several times in a row, and the settings say that the run is to stop then.
        """
        self.note_saved()
        weights = self._published()
        if weights is None:
            return False
        saved = await self._save(*weights)
        self._failures = 0 if saved else self._failures + 1
        if self._failures >= FAILURES_IN_A_ROW and self._settings.supervision.on_checkpoint_failure == "stop":
            raise ResourceError(f"{self._failures} checkpoints in a row could not be saved: {self._saver.unsaved}")
        return saved

    async def _save(self, version: int, flat: Array) -> bool:
        facts, arrays = self._snapshot()
        number, began = self._saver.next_number(), time.monotonic()
        try:
            files = await self._write(self._saver.stage(number), facts, arrays)
            finish = functools.partial(self._saver.save_whole, number, version, flat, facts, files, began)
            return bool(await self._on_disk(finish))
        except BaseException as error:
            cause = first_of(error)
            if not isinstance(cause, MlxeError | OSError | ValueError):
                self._saver.drop_staged(number)
                raise
            self._saver.failed(number, cause)
            return False

    async def _write(self, folder: Path, facts: dict[str, Any], arrays: Mapping[str, Array]) -> dict[str, Written]:
        async with asyncio.TaskGroup() as group:
            work = {name: group.create_task(one) for name, one in self._files(folder, facts).items()}
        files = {name + SUFFIX: task.result() for name, task in work.items()}
        path = folder / f"{OWN}{SUFFIX}"
        return {**files, path.name: await self._on_disk(write_arrays, path, arrays)}

    def _snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Facts and arrays of the supervisor, all of this one moment."""
        crew = self._crew
        facts: dict[str, Any] = {
            "counters": crew.counters.to_json(),
            "budget": crew.budget.state(),
            "delivered": sorted(crew.delivered),
            "returns": {str(version): returns for version, returns in crew.returns.items()},
            "memorizer": self._memorizer.state(),
            "executors": [],
            **self._more(),
        }
        arrays: dict[str, Array] = {}
        for executor in self._executors:
            told, own = executor.state()
            facts["executors"].append(told)
            arrays |= {f"executor-{executor.index}.{name}": array for name, array in own.items()}
        facts["evaluator"], passed = self._evaluator.state()
        arrays |= {f"passed.{version}": flat for version, flat in passed.items()}
        kept = {int(version) for version in passed} | {crew.counters.version}
        known = {str(version): crew.publications.get(version) for version in sorted(kept)}
        facts["publications"] = {version: about for version, about in known.items() if about is not None}
        facts["saver"], best = self._saver.state()
        arrays |= best
        return facts, arrays

    def _files(self, folder: Path, facts: dict[str, Any]) -> dict[str, Coroutine[Any, Any, Written]]:
        async def keep(name: str) -> Written:
            path = str(folder / f"{name}{SUFFIX}")
            if name == "memorizer":
                kept = await self._memorizer.keep(path)
                facts["waiting"] = kept["facts"]["waiting"]
                facts["memorizer"]["rows_since"] += kept["facts"]["ingested"]["rows"]
            else:
                kept = await self._homes[name].call("save", role="keeper", name=name, path=path)
            return Written(kept["nbytes"], kept["sha256"])

        names = ["memorizer", "learner"]
        if not self._crew.free_running:
            names += [f"executor-{executor.index}" for executor in self._executors if not executor.busy]
        return {name: keep(name) for name in names}

    async def _on_disk(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, *arguments)
