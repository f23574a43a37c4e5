"""What one run consists of, in one object that is made once: settings, sizes, shared memory, files, counters."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.rows import Array
from mlxe_async.settings import Settings
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.weights import published_weights
from mlxe_async.supervisor.plan.blueprint import Blueprint
from mlxe_async.supervisor.plan.budget import Bell, Budget, Counters, Measures
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.recording.replay import Replay
from mlxe_async.supervisor.recording.steps import Recorder
from mlxe_async.supervisor.run_files import RunFiles


@dataclass(frozen=True)
class RunContext:
    """What one run consists of, when its memory is reserved and its log has begun.

    Args:
        settings: with the defaults that only the probe knows.
        blueprint: which process holds which roles, and which bytes they share.
        segments: these bytes, by name.
        nursery: forks the processes.
        measures: counters, budget and clocks.
        files: folder, log, checkpoints and recording.
        point: what the run goes on from, None for a new one.
        replay: the recording to be followed instead of the schedule, if any.
        disk: where blocking work is done.
    """

    settings: Settings
    blueprint: Blueprint
    segments: Mapping[str, Segment]
    nursery: Nursery
    measures: Measures
    files: RunFiles
    point: ResumePoint | None
    replay: Replay | None
    disk: ThreadPoolExecutor

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return self.files.folder

    @property
    def log(self) -> EventLog:
        """Tells the log."""
        return self.files.log

    @property
    def recorder(self) -> Recorder:
        """Hears all that a replay would have to do again."""
        return self.files.recorder

    @property
    def counters(self) -> Counters:
        """What the run has done so far."""
        return self.measures.counters

    @property
    def budget(self) -> Budget:
        """Says when to stop."""
        return self.measures.budget

    @property
    def bell(self) -> Bell:
        """Wakes those who wait for a condition."""
        return self.measures.bell

    @property
    def former_rows(self) -> int:
        """Rows taken in by a memory that this run does not go on with."""
        return self.point.former_rows if self.point else 0

    def published(self) -> tuple[int, Array] | None:
        """Version and weights (P,) of the newest publication; None before the first."""
        return published_weights(self.segments["weights"], self.blueprint.parameters)
