"""Whole checkpoints: saving all there is of a run, so that it can go on as if nothing had happened.

It happens between two rounds of a schedule (`main_loop.Rounds.boundary`), or between two plans of a learner that never
waits: then learner and memory stand still, and where rounds are rounds the executors do too. Each process writes the
state of its roles to a file; the supervisor adds weights, counters and what its handles know, and renames the whole
into place.

At the end of a run the same is tried once more. It may be in the middle of a round then. As long as nothing was learned
from it, that is no harm where rollouts are redone alike (`serial`, `istb`, `is`): who had delivered is excused from the
round when the run goes on, and what was under way is generated again. Under `ia` and `oa` the run goes on from there
with other episodes.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from mlxe_async.errors import MlxeError, ResourceError
from mlxe_async.rows import Array
from mlxe_async.storage.array_files import Written, write_arrays
from mlxe_async.supervisor.assembly import Assembly
from mlxe_async.supervisor.checkpointing.saved_state import OWN, SUFFIX
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.waiting import first_of

FINAL_LIMIT_S = 60.0
FAILURES_IN_A_ROW = 3


class WholeCheckpoints:
    """Makes whole checkpoints when they are due.

    Args:
        run: what the run consists of.
        parts: its processes and handles.
    """

    def __init__(self, run: RunContext, parts: Assembly) -> None:
        self._run, self._parts = run, parts
        self._failures = 0

    async def at_boundary(self) -> None:
        """Save if it is time to."""
        self._parts.due.note_boundary()
        if self._parts.due.now():
            async with self._parts.learner.resting():
                if self._parts.due.now():
                    await self.save()

    @property
    def at_rest(self) -> bool:
        """True if all is known of what was done so far, so that the run could go on from here."""
        parts, context = self._parts, self._parts.context
        if parts.learner.busy or parts.learner.under_way or parts.memorizer.busy or self._run.published() is None:
            return False
        if context.free_running:
            return True
        under_way = any(executor.busy for executor in parts.executors)
        if context.deterministic:
            return not under_way or self._run.settings.schedule.sync == "episode"
        return not under_way and not context.delivered

    async def save(self) -> bool:
        """Save everything now; returns whether it is on disk.

        A failure is told, and the run goes on.

        Raises:
            ResourceError: it has failed several times in a row, and the settings say that the run is to stop then.
        """
        self._parts.due.note_saved()
        weights = self._run.published()
        if weights is None:
            return False
        began = time.monotonic()
        saved = await self._save(*weights)
        self._parts.due.saving_s += time.monotonic() - began
        self._failures = 0 if saved else self._failures + 1
        if self._failures >= FAILURES_IN_A_ROW and self._run.settings.supervision.on_checkpoint_failure == "stop":
            raise ResourceError(
                f"{self._failures} checkpoints in a row could not be saved: {self._run.files.saver.unsaved}"
            )
        return saved

    async def _save(self, version: int, flat: Array) -> bool:
        facts, arrays = self._snapshot()
        number, began = self._run.files.saver.next_number(), time.monotonic()
        try:
            files = await self._write(self._run.files.saver.stage(number), facts, arrays)
            finish = functools.partial(self._run.files.saver.save_whole, number, version, flat, facts, files, began)
            return bool(await self._on_disk(finish))
        except BaseException as error:
            cause = first_of(error)
            if not isinstance(cause, MlxeError | OSError | ValueError):
                self._run.files.saver.drop_staged(number)
                raise
            self._run.files.saver.failed(number, cause)
            return False
        finally:
            self._run.files.saver.tell()

    async def _write(self, folder: Path, facts: dict[str, Any], arrays: Mapping[str, Array]) -> dict[str, Written]:
        async with asyncio.TaskGroup() as group:
            work = {name: group.create_task(one) for name, one in self._files(folder, facts).items()}
        files = {name + SUFFIX: task.result() for name, task in work.items()}
        path = folder / f"{OWN}{SUFFIX}"
        return {**files, path.name: await self._on_disk(write_arrays, path, arrays)}

    def _snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Facts and arrays of the supervisor, all of this one moment."""
        run, parts, context = self._run, self._parts, self._parts.context
        facts: dict[str, Any] = {
            "counters": context.counters.to_json(),
            "budget": context.budget.state(),
            "delivered": sorted(context.delivered),
            "returns": {str(version): returns for version, returns in context.returns.items()},
            "memorizer": parts.memorizer.state(),
            "executors": [],
            "memory_shape": run.blueprint.memory_to_keep,
            **run.measures.to_keep(run.files.journal.next_seq),
            "solved_at": run.files.solved.at,
        }
        if context.lessons is not None:
            facts["lessons"] = context.lessons.state()
        if context.promoter is not None:
            facts["promoter"] = context.promoter.state()
        arrays: dict[str, Array] = {}
        for executor in parts.executors:
            told, own = executor.state()
            facts["executors"].append(told)
            arrays |= {f"executor-{executor.index}.{name}": array for name, array in own.items()}
        if parts.delayed is not None:
            arrays |= parts.delayed.state()
        facts["evaluator"], passed = parts.evaluator.state()
        arrays |= {f"passed.{version}": flat for version, flat in passed.items()}
        kept = {int(version) for version in passed} | {context.counters.version}
        known = {str(version): context.publications.get(version) for version in sorted(kept)}
        facts["publications"] = {version: about for version, about in known.items() if about is not None}
        facts["saver"], best = run.files.saver.state()
        arrays |= best
        return facts, arrays

    def _files(self, folder: Path, facts: dict[str, Any]) -> dict[str, Coroutine[Any, Any, Written]]:
        async def keep(name: str) -> Written:
            path = str(folder / f"{name}{SUFFIX}")
            if name == "memorizer":
                kept = await self._parts.memorizer.keep(path)
                facts["waiting"] = kept["facts"]["waiting"]
                facts["memorizer"]["rows_since"] += kept["facts"]["ingested"]["rows"]
            else:
                kept = await self._parts.by_role[name].call("save", role="keeper", name=name, path=path)
            return Written(kept["nbytes"], kept["sha256"])

        names = ["memorizer", "learner"]
        if not self._parts.context.free_running:
            names += [f"executor-{executor.index}" for executor in self._parts.executors if not executor.busy]
        return {name: keep(name) for name in names}

    async def _on_disk(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._run.disk, work, *arguments)
