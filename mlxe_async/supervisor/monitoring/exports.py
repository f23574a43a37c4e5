"""Exports while a run goes on, as `[logs] export` asks: a companion process each, which reads the log as it grows."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

from mlxe_async.analysis.exporters import lacking
from mlxe_async.errors import ResourceError, SettingsError
from mlxe_async.ipc.processes.companion import Companion
from mlxe_async.settings import Problem, Settings
from mlxe_async.supervisor.plan.budget import Measures
from mlxe_async.supervisor.plan.event_log import EventLog

ENTRY = "mlxe_async.analysis.exporters.beside:export"
FINISH_S = 10.0
"For exports to take in what is left of the log, once the run has ended."


class Exports:
    """The companions that export one run; none unless the settings ask for one.

    Args:
        settings: the run's settings.
        measures: counts the companions' CPU time, and keeps the learner's core free of them.

    Raises:
        SettingsError: a package is missing, told with the extra that brings it.
    """

    def __init__(self, settings: Settings, measures: Measures) -> None:
        self._targets, self._measures = list(dict.fromkeys(settings.logs.export)), measures
        path = ("logs", "export")
        problems = [Problem(path, f'got "{one}", but {lack}') for one in self._targets if (lack := lacking(one))]
        if problems:
            raise SettingsError([settings.places.line(problem) for problem in problems])
        self._companions: dict[str, Companion] = {}

    def start(self, folder: Path, log: EventLog) -> None:
        """Start them, on the run's loop; one that cannot be started, or dies, is told to the log and not missed."""
        for target in self._targets:
            spec = {"folder": str(folder.absolute()), "target": target}
            tell = functools.partial(_tell, log, target)
            self._companions[target] = companion = Companion("mlxe-export", ENTRY, spec, on_ended=tell)
            try:
                companion.start()
            except ResourceError as error:
                tell(str(error))
        self._measures.beside += self._companions.values()

    async def finish(self, limit_s: float = FINISH_S) -> tuple[str, ...]:
        """Wait until they have taken in the whole log, at most `limit_s`; returns which have not, in words."""
        async with asyncio.TaskGroup() as group:
            ends = {name: group.create_task(one.finish(limit_s)) for name, one in self._companions.items()}
        short = {name: end.result() for name, end in ends.items() if end.result()}
        return tuple(f"the export to {name} is not whole: {why}; {_again(name)}" for name, why in short.items())


def _tell(log: EventLog, target: str, sentence: str) -> None:
    log.warn(f"the export to {target} ended: {sentence}; the run goes on without it, {_again(target)}", loud=True)


def _again(target: str) -> str:
    return f"export RUN --to {target} writes all of it"
