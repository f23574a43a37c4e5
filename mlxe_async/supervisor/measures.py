"""What a run measures of itself, over all its resumptions: counts, time, CPU time, and what is left of its budget."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlxe_async.ipc.nursery import Nursery
from mlxe_async.ipc.process import Process
from mlxe_async.settings import Settings
from mlxe_async.supervisor.budget import Bell, Budget, Counters
from mlxe_async.supervisor.monitoring.cpu_time import CpuClock

CPU_LOOK_S = 0.1


class Measures:
    """Counters, budget and clocks of one run; the time begins when this is made.

    Args:
        settings: the run's settings.
        processes: whose CPU time counts, as they come and go.
        nursery: the same.
    """

    def __init__(self, settings: Settings, processes: Sequence[Process], nursery: Nursery) -> None:
        self.counters, self.bell = Counters(), Bell()
        self.budget = Budget(settings.stop.model_dump(), self.counters, self.bell)
        self.cpu = CpuClock()
        self._processes, self._nursery = processes, nursery
        self._began = time.monotonic()
        self._gap_ns = 0  # of all resumptions so far

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without those between its interruptions and its resumptions."""
        return time.monotonic() - self._began

    def look_at_cpu(self, *, at_most_every_s: float = 0.0) -> None:
        """Note how much CPU time each process has used so far, unless that was just done."""
        if self.cpu.age_s < at_most_every_s:
            return
        living = [(name, pid) for pid, name in self.living().items()]
        if self._nursery.pid:
            living.append(("mlxe-nursery", self._nursery.pid))
        self.cpu.look(living)

    def living(self) -> dict[int, str]:
        """The run's processes by pid, without this one and the nursery."""
        return {process.pid: process.name for process in self._processes if process.pid}

    def cpu_seconds(self, without: str) -> float:
        """CPU time of all processes but those whose name begins like this, a moment ago."""
        self.look_at_cpu(at_most_every_s=CPU_LOOK_S)
        return self.cpu.total(without=without)

    def to_keep(self, next_seq: int) -> dict[str, Any]:
        """Time and CPU time for a checkpoint that is made before the line `next_seq` of the log."""
        self.look_at_cpu()
        return {
            "log": {"next_seq": next_seq, "clock_ns": time.monotonic_ns() - self._gap_ns},
            "seconds": self.seconds,
            "cpu_seconds": self.cpu.by_name(),
        }

    def go_on(self, state: Mapping[str, Any], first_version: int) -> int | None:
        """Count on from a checkpoint. Returns for how long (ns) the run's clocks stood still, None if unknown."""
        for name, count in state["counters"].items():
            setattr(self.counters, name, count)
        self.counters.version = first_version
        self.cpu.go_on(state["cpu_seconds"])
        marks = state.get("log", {})  # checkpoints of older programs have none
        gap_ns = round(self._began * 1e9) - marks["clock_ns"] if marks else None
        self._gap_ns = gap_ns or 0
        self._began -= state["seconds"]
        self.budget.restore(state["budget"])
        return gap_ns
