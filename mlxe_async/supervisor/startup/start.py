"""From settings to a run that can be assembled: probe, what it goes on from, shared memory, folder and log."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mlxe_async.choices import RULES
from mlxe_async.errors import ResourceError
from mlxe_async.ipc.processes.linux import refusal
from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process
from mlxe_async.ipc.shared.segments import Segment, available_memory
from mlxe_async.ipc.shared.weights import WeightsWriter
from mlxe_async.logs import events
from mlxe_async.logs.subscribers import Subscribers
from mlxe_async.settings import Settings
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.weights import Origin, weights_to_begin_with
from mlxe_async.supervisor.context import RunContext
from mlxe_async.supervisor.plan.blueprint import Blueprint
from mlxe_async.supervisor.plan.budget import Measures
from mlxe_async.supervisor.plan.results import CheckReport
from mlxe_async.supervisor.recording.replay import Replay
from mlxe_async.supervisor.run_files import RunFiles
from mlxe_async.supervisor.startup.host_limits import reserve_descriptors
from mlxe_async.supervisor.startup.preloading import PRELOADED_MEANWHILE
from mlxe_async.supervisor.startup.probe import MOST_REHEARSED, probed, rehearsed
from mlxe_async.supervisor.startup.restore import fill_memory
from mlxe_async.supervisor.startup.surveying import surveyed, told

EXECUTORS = ("schedule", "executors")
LONGEST_NAME = 57  # of which a suffix makes a name that is still allowed


class Startup:
    """What there is of a run so far: each part needs those before it, and a run may end after any of them.

    Args:
        settings: from `load_settings`.
        base: folder to make the run's folder in.
        resume: folder of a run to go on with, if any.
        replay: the recording to be followed instead of the schedule, if any.
        nursery: not yet started.
        processes: where the probe's process is kept while it lives.
        measures: the run's counters, budget and clocks.
        subscribers: who hears the log too.
        disk: where blocking work is done.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        base: Path,
        resume: str | os.PathLike[str] | None,
        replay: Replay | None,
        nursery: Nursery,
        processes: list[Process],
        measures: Measures,
        subscribers: Subscribers,
        disk: ThreadPoolExecutor,
    ) -> None:
        self.settings = settings
        self._base, self._resume, self._replay = base, resume, replay
        self._nursery, self._processes, self._measures = nursery, processes, measures
        self._subscribers, self._disk = subscribers, disk
        self.facts: dict[str, Any] = {}
        self._cautions: list[str] = []
        self.blueprint: Blueprint
        self.folder: RunFolder | None = None
        self.segments: dict[str, Segment] = {}
        self.files: RunFiles | None = None

    async def check(self) -> CheckReport:
        """Probe the task, do one update on made-up rows, compute the memory plan; see `Supervisor.check`."""
        reserve_descriptors(self.settings)
        past = None if self._resume is None else self._find(self._resume, writes=False)
        async with self._probed():
            start = list[str]()
            if past is not None:
                past.judge(self.settings, self.facts)
                start += past.outlook(self.settings)
            if past is None or past.begins_anew(self.settings):
                origin = self._origin(past)
                start += [] if origin is None else [f"begins with   {origin}"]
            plan = Blueprint(self.settings, self.facts).byte_plan()
            plan.check(available_memory())
            await rehearsed(self.settings, probe := self._processes[0])  # the only one yet
            found = told(self.settings, self.facts, await surveyed(self.settings, probe), plan.total)
            return CheckReport(plan.lines(), self.facts, start, self._cautions, list(found))

    async def _expect_published(self) -> None:
        """Refuse an algorithm of the user's own whose executors would act by what is not published.

        A large one is judged when the learner publishes for the first time.
        """
        parameters = sum(math.prod(shape) for _, shape in self.facts["parameters"])
        if ":" in self.settings.algorithm.name and parameters <= MOST_REHEARSED:
            await rehearsed(self.settings, self._processes[0], only_published=True)

    @contextlib.asynccontextmanager
    async def begun(self) -> AsyncIterator[RunContext]:
        """Probe the task, reserve the memory, fill it with what the run goes on from, and begin the log.

        While the block runs, the rest of what the processes need is imported.
        """
        began = time.monotonic()
        reserve_descriptors(self.settings)
        try:
            self._disk.submit(int)  # it has its thread from now on
        except RuntimeError as error:
            raise ResourceError(f"the supervisor cannot start its thread for files: {refusal(error)}") from error
        past = None if self._resume is None else self._find(self._resume, writes=True)
        anew = past if past is not None and past.begins_anew(self.settings) else None
        point = None if anew is not None else past
        async with self._probed(PRELOADED_MEANWHILE):
            self.blueprint = blueprint = Blueprint(self.settings, self.facts)
            if past is not None:
                past.judge(self.settings, self.facts)
            await self._expect_published()
            origin = self._origin(anew) if point is None else None
            self.segments = blueprint.create_segments()
            if point is not None and point.whole is not None:
                with point.taking_up():
                    fill_memory(point, self.segments, blueprint)
            if origin is not None:
                # The learner goes on from what is published, as it would after a restart.
                WeightsWriter(self.segments["weights"]).publish(origin.flat)
            if self.folder is None:
                self.folder = RunFolder.create(self._base, name_of(self.settings))
            self.files = files = RunFiles(
                self.folder, self.settings, self.facts, self._measures, self._subscribers, point, anew, origin
            )
            files.begin(blueprint.cores)
            self._tell(files, time.monotonic() - began)
            yield RunContext(
                settings=self.settings,
                blueprint=blueprint,
                segments=self.segments,
                nursery=self._nursery,
                measures=self._measures,
                files=files,
                point=point,
                replay=self._replay,
                disk=self._disk,
            )

    def close(self) -> None:
        """Give folder and shared memory free."""
        if self.folder is not None:
            self.folder.close()
        for segment in self.segments.values():
            segment.close()

    @contextlib.asynccontextmanager
    async def _probed(self, meanwhile: Sequence[str] = ()) -> AsyncIterator[None]:
        async with probed(self._nursery, self.settings, self._processes, meanwhile) as found:
            self.settings, self.facts, self._cautions = found.settings, found.facts, found.cautions
            yield

    def _find(self, path: str | os.PathLike[str], *, writes: bool) -> ResumePoint:
        """Return what to go on from; its folder is held from now on."""
        found = ResumePoint.find(path, writes=writes)
        self.folder = found.folder
        found.refuse_another_algorithm(self.settings)
        if found.whole is None and (found.rejected or not found.begins_anew(self.settings)):
            raise found.refusal(self.settings)  # before anything is made that its settings ask for, or is written
        # What followed from the task when it began stays, whatever would follow now.
        self.settings = self.settings.taking(found.settings, sorted({key for rule in RULES for key in rule.sets}))
        if EXECUTORS in self.settings.places.automatic:  # it goes on with those it had, on whatever machine
            self.settings = self.settings.with_executors(found.settings.schedule.executors)
            reserve_descriptors(self.settings)
        return found

    def _origin(self, anew: ResumePoint | None) -> Origin | None:
        """The weights of another run to begin with, if any; those that a run which begins anew began with."""
        origin = weights_to_begin_with(self.settings, self.facts)
        if anew is not None:
            anew.refuse_other_weights(None if origin is None else origin.digest)
        if self._replay is not None and origin is not None:
            self._replay.refuse_other_weights(origin.digest)
        return origin

    def _tell(self, files: RunFiles, seconds: float) -> None:
        """Tell what the probe found, and what is odd."""
        files.log.emit(
            events.ProbeOk(
                seconds=seconds,
                spaces=self.facts["spaces"],
                parameters=self.blueprint.parameters,
                plan_bytes=self.blueprint.byte_plan().total,
                memory=self.facts["memory_kind"],
            ),
            "probe",
        )
        for note in (*self.facts["task"]["notes"], *self._cautions):
            files.log.warn(note)
        if weakness := self._nursery.weakness:
            files.log.warn(
                f"{weakness}; what environments have started may be left behind when all processes of this run "
                "are killed in one moment"
            )


def name_of(settings: Settings) -> str:
    """Return what a run's folder is called after its time: with the number of executors where that was left to us."""
    name, executors = settings.run.name, settings.schedule.executors
    return f"{name[:LONGEST_NAME]}-{executors}e" if EXECUTORS in settings.places.automatic else name
