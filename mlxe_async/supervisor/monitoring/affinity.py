"""CPU affinity: gives the learner a core of its own while everybody waits for it.

Left to itself the kernel puts a thread that wakes wherever there is room for a moment: an executor takes the learner's
place, and what the learner had in that core's cache is gone. Where the learner is what the run waits for, and all the
others fit on the cores that are left, it pays to keep them apart; where it has time to spare, they need its core.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlxe_async.logs import events
from mlxe_async.supervisor.plan.cpu_time import process_seconds, starved_seconds
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.waiting import every

LOOK_S = 1.0
SURE = 2  # looks in a row that say the same before anybody is moved
AGAIN_S, AGAIN_MAX_S = 10.0, 600.0  # from giving the core up to trying again: first, and doubled up to
LEARNER = "mlxe-lrn"
Processes = Callable[[], Mapping[int, str]]


@dataclass(frozen=True)
class Load:
    """What ran between two looks, in cores: the learner, the run's other processes, and what is not of this run."""

    learner: float
    others: float
    foreign: float
    starved: float = 0.0
    """Share of the time in which the learner was ready to run, but had no core."""


def pays(load: Load, cores: int, *, already: bool) -> bool:
    """Return whether the learner should have one of these cores to itself, or keep the one that it has `already`.

    It gets one if it would fill it, and the others have room on the rest. It keeps it while it uses the most of it, and
    the others do not lack it; or hardly a core stands idle, so that there is nothing to be won by sharing.
    """
    rest, used = cores - 1, load.learner + load.others
    if already:
        return load.learner > 0.6 and (load.others < 0.97 * rest or used > 0.92 * cores) and load.foreign < 0.25
    return load.learner + load.starved > 0.85 and load.others < 0.9 * rest and load.foreign < 0.1


class Affinity:
    """Moves the run's processes between the cores that this process may use; this process itself stays free.

    Args:
        wanted: whether the learner is to have its own core; "auto": while that pays.
        processes: the living ones, pid -> name, whenever asked.
        log: is told of each change.
    """

    def __init__(self, wanted: bool | Literal["auto"], processes: Processes, log: EventLog) -> None:
        self._wanted, self._processes, self._log = wanted, processes, log
        self._cores = os.sched_getaffinity(0)
        self._own: int | None = None
        self._placed: dict[int, Set[int]] = {}
        self._agreed, self._again_s, self._not_before = 0, AGAIN_S, 0.0
        self._seen = self._used()

    @property
    def own(self) -> int | None:
        """The learner's own core, None while it has none."""
        return self._own

    async def keep(self) -> None:
        """Look every second, for ever; no more than a look is done where there is nothing to choose from."""
        async for _ in every(LOOK_S):
            self.look()

    def look(self) -> None:
        """Decide anew by what happened since the last look; processes that are new go where they belong."""
        living, load = self._processes(), self._load()
        learner = next((pid for pid, name in living.items() if name == LEARNER), None)
        if learner is None or len(self._cores) < 2 or load is None:
            return
        own = self._own is not None
        better = pays(load, len(self._cores), already=own) if self._wanted == "auto" else self._wanted
        self._agreed = self._agreed + 1 if better != own else 0
        if self._agreed >= (SURE if self._wanted == "auto" else 1) and time.monotonic() >= self._not_before:
            self._change(learner, load)
        self._place(living)

    def _change(self, learner: int, load: Load) -> None:
        self._agreed = 0
        if self._own is None:
            core = _last_core(learner)
            self._own = core if core in self._cores else max(self._cores)
        else:
            self._own, self._not_before = None, time.monotonic() + self._again_s
            self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
        shares = {name: round(value, 2) for name, value in vars(load).items()}
        self._log.emit(events.Placed(core=self._own, **shares))

    def _place(self, living: Mapping[int, str]) -> None:
        self._placed = {pid: cores for pid, cores in self._placed.items() if pid in living}
        for pid, name in living.items():
            if self._own is None:
                cores: Set[int] = self._cores
            else:
                cores = {self._own} if name == LEARNER else self._cores - {self._own}
            if self._placed.get(pid, self._cores) == cores:
                continue
            # A thread that ends just now needs no core; what the system refuses stays as it is.
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    os.sched_setaffinity(int(thread.name), cores)
            self._placed[pid] = cores

    def _load(self) -> Load | None:
        """Since the last look; None if a process came or went in between."""
        before, self._seen = self._seen, self._used()
        (then, busy, spent, lacked), (now, busy_now, spent_now, lacked_now) = before, self._seen
        if now <= then or spent.keys() != spent_now.keys():
            return None
        of_run = {pid: (spent_now[pid] - spent[pid]) / (now - then) for pid in spent}
        living = self._processes()
        learner = sum(share for pid, share in of_run.items() if living.get(pid) == LEARNER)
        others = sum(of_run.values()) - learner
        foreign = max(0.0, (busy_now - busy) / (now - then) - learner - others)
        return Load(learner, others, foreign, (lacked_now - lacked) / (now - then))

    def _used(self) -> tuple[float, float, dict[int, float], float]:
        """The time; seconds: of busy cores, of CPU by pid, this process's too, and of a learner without a core."""
        living = self._processes()
        spent = {pid: process_seconds(pid) for pid in (*living, os.getpid())}
        starved = sum(starved_seconds(pid) for pid, name in living.items() if name == LEARNER)
        return time.monotonic(), _busy_seconds(self._cores), spent, starved


def _busy_seconds(cores: Set[int]) -> float:
    """Return what these cores have worked since the machine started, for any process."""
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _, _, interrupts, soft_interrupts = map(int, counts[:7])
            ticks += user + nice + system + interrupts + soft_interrupts
    return ticks / os.sysconf("SC_CLK_TCK")


def _last_core(pid: int) -> int:
    """Return where a process ran last, -1 if it has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])
    except (OSError, IndexError):
        return -1
