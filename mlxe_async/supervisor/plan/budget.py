"""Counters of a run, its stop conditions, and its clocks: when it has to end, and what it has used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxe_async.ipc.processes.companion import Companion
from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process
from mlxe_async.settings import Settings
from mlxe_async.supervisor.plan.cpu_time import CpuClock

AFTER_SOLVED = "steps_after_solved"
CPU_LOOK_S = 0.25
LIMITS = ("env_steps", "episodes", "episode_steps", "updates", "seconds")


@dataclass
class Counters:
    """What the run has done so far, exact and monotone.

    Args:
        env_steps: committed environment steps, all executors together.
        episodes: training episodes that ended by themselves or at their limit.
        episodes_started: training episodes begun, aborted and running ones included.
        episodes_aborted: episodes that a fault of an environment or of an executor cut short.
        episode_steps: steps of the longest finished training episode.
        updates: steps of the optimiser.
        rollouts: rollouts delivered.
        version: newest published weights.
        restarts: processes started again.
        env_errors: faults of environments.
        recycled: executors replaced as planned, because of their memory.
        poisoned: episodes passed over because they brought their executor down again and again.
        out_of_bounds: observations outside the bounds of their space, of those looked at (one in sixteen).
    """

    env_steps: int = 0
    episodes: int = 0
    episodes_started: int = 0
    episodes_aborted: int = 0
    episode_steps: int = 0
    updates: int = 0
    rollouts: int = 0
    version: int = 0
    restarts: int = 0
    env_errors: int = 0
    recycled: int = 0
    poisoned: int = 0
    out_of_bounds: int = 0

    def to_json(self) -> dict[str, int]:
        """The counters by name."""
        # Not `asdict`: each of its calls leaves a tuple behind in the interpreter's list of free ones, up to thousands.
        return dict(vars(self))


class Bell:
    """Wakes coroutines that wait for a condition to become true. Each change of a counter or a state rings it."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def ring(self) -> None:
        """Wake those whose condition has become true."""
        for waiter, condition in self._waiters.items():
            if not waiter.done() and condition():
                waiter.set_result(None)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition()` holds; it is looked at when the bell rings, changes nothing, never raises."""
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = condition
            try:
                await waiter
            finally:
                del self._waiters[waiter]


@dataclass
class Budget:
    """Spent by finished rollouts; runs out when the first of the `[stop]` conditions is met, or on request.

    Args:
        stop: the `[stop]` table.
        counters: the run's counters, kept up to date by the handles.
        bell: rung when the budget runs out, so that no coroutine goes on waiting.
    """

    stop: Mapping[str, Any]
    counters: Counters
    bell: Bell
    reason: str | None = None
    at_once: bool = False
    began: float = field(default_factory=time.monotonic)
    counted: int = 0
    "Environment steps at the end of the last round: the same in whatever order executors deliver."
    counted_episodes: int = 0
    "Finished episodes then."
    _solved_at_step: int | None = None

    def __post_init__(self) -> None:
        # Looked at several times for each rollout.
        self._limits: dict[str, float] = {name: self.stop[name] for name in LIMITS if self.stop.get(name) is not None}

    @property
    def seconds(self) -> float:
        """Seconds since the first rollout could begin."""
        return time.monotonic() - self.began

    @property
    def remaining(self) -> bool:
        """Whether to go on."""
        if self._solved_at_step is not None and self.stop.get("solved") and self.stop.get(AFTER_SOLVED) is None:
            self.finish("solved")
        if self.reason is None:
            for name, limit in self.limits().items():
                if self.spent(name) >= limit:
                    self.finish("solved" if name == AFTER_SOLVED else name)
                    break
        return self.reason is None

    def limits(self) -> dict[str, float]:
        """The numeric stop conditions that are set; the steps after the solution count once there is one."""
        if self._solved_at_step is None or self.stop.get(AFTER_SOLVED) is None:
            return self._limits
        return {**self._limits, AFTER_SOLVED: self.stop[AFTER_SOLVED]}

    def spent(self, name: str) -> float:
        """Return how much of a stop condition is used up."""
        if name == AFTER_SOLVED:
            return float(self.counters.env_steps - (self._solved_at_step or 0))
        return self.seconds if name == "seconds" else float(getattr(self.counters, name))

    def spend(self, rollouts: Iterable[Any]) -> None:
        """Part of the schedules' verbs; the handles have counted already, here the conditions are looked at."""
        # None is what an executor gives that had nothing to do any more.
        self.counters.rollouts += sum(rollout is not None for rollout in rollouts)
        self.counted, self.counted_episodes = self.counters.env_steps, self.counters.episodes
        _ = self.remaining

    def share(self, executors: int) -> int | None:
        """Steps that each of `executors` executors may make until `stop.env_steps`, at least 1; None without that."""
        limit = self._limits.get("env_steps")
        return None if limit is None else max(1, -(-(int(limit) - self.counted) // executors))

    def state(self) -> dict[str, Any]:
        """Return what is to be kept: seconds used, and where the task was solved."""
        counted = {"counted": self.counted, "counted_episodes": self.counted_episodes}
        return {"seconds": self.seconds, "solved_at_step": self._solved_at_step, **counted}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there, as if the seconds used had just gone by."""
        self.began = time.monotonic() - float(state["seconds"])
        if state["solved_at_step"] is not None:
            self._solved_at_step = state["solved_at_step"]
        self.counted = state.get("counted", self.counters.env_steps)  # checkpoints of older programs have none
        self.counted_episodes = state.get("counted_episodes", self.counters.episodes)

    def note_solved(self) -> None:
        """The task is solved: with `[stop] solved` run out, at once or `steps_after_solved` environment steps later."""
        if self.stop.get("solved"):
            self.was_solved(self.counters.env_steps)
            _ = self.remaining

    def was_solved(self, at_step: int) -> None:
        """It was solved at this number of environment steps; the conditions are looked at as ever."""
        if self._solved_at_step is None:
            self._solved_at_step = at_step

    def finish(self, reason: str, *, at_once: bool = False) -> None:
        """Run out now; the first reason stays. `at_once`: rounds that were begun are not waited for."""
        self.at_once |= at_once
        if self.reason is None:
            self.reason = reason
        self.bell.ring()


class Measures:
    """Counters, budget and clocks of one run, over all its resumptions; the time begins when this is made.

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
        self.beside: list[Companion] = []
        "Processes that only look on; their CPU time counts too."
        self._began = time.monotonic()
        self._gap_ns = 0  # of all resumptions so far

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without those between its interruptions and its resumptions."""
        return time.monotonic() - self._began

    def look_at_cpu(self, *, starved: bool = True) -> None:
        """Note how much CPU time each process has used so far, and for how long it was `starved` of it."""
        living = [(name, pid) for pid, name in self.living().items()]
        if self._nursery.pid:
            living.append(("mlxe-nursery", self._nursery.pid))
        self.cpu.look(living, starved=starved)

    def living(self) -> dict[int, str]:
        """The run's processes by pid, without this one and the nursery."""
        every: Sequence[Process | Companion] = [*self._processes, *self.beside]
        return {process.pid: process.name for process in every if process.pid}

    def cpu_seconds(self, without: str) -> float:
        """CPU time of all processes but those whose name begins like this, a moment ago."""
        if self.cpu.age_s >= CPU_LOOK_S:
            self.look_at_cpu(starved=False)
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
