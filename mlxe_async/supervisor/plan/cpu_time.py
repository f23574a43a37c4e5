"""CPU time of the run's processes, the dead ones included as far as they were seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

_SCHEDULED = 2


class CpuClock:
    """Sums up user and system time of processes that come and go."""

    def __init__(self) -> None:
        self._own = process_seconds(os.getpid())
        self._looked = 0.0
        self._seen: dict[tuple[str, int], float] = {}
        self._starved: dict[tuple[str, int], float] = {}
        self._before: dict[str, float] = {}
        self._sums: dict[str, float] = {}

    def go_on(self, by_name: Mapping[str, float]) -> None:
        """Count on from what a run had used before it was interrupted."""
        self._before = dict(by_name)
        self._sums.clear()

    @property
    def age_s(self) -> float:
        """Seconds since the last look."""
        return time.monotonic() - self._looked

    def look(self, processes: Iterable[tuple[str, int]], *, starved: bool = True) -> None:
        """Note how much each living process, `(name, pid)`, has used so far.

        Args:
            processes: which ones.
            starved: note also for how long they had no core, which costs five times as much.
        """
        self._looked = time.monotonic()
        self._sums.clear()
        for name, pid in processes:
            seconds = process_seconds(pid)
            if seconds:
                self._seen[name, pid] = seconds
                if starved:
                    self._starved[name, pid] = starved_seconds(pid)

    def total(self, *, without: str = "\0") -> float:
        """Seconds of all processes seen and of this one since the clock was made.

        Args:
            without: leave out processes whose name begins like this.
        """
        if without not in self._sums:
            spent = [(name, seconds) for (name, _), seconds in self._seen.items()] + list(self._before.items())
            self._sums[without] = sum(seconds for name, seconds in spent if not name.startswith(without))
        return process_seconds(os.getpid()) - self._own + self._sums[without]

    def by_name(self) -> dict[str, float]:
        """Seconds per process name, all lives of it together; this process is `mlxe-sup`."""
        shares = {"mlxe-sup": process_seconds(os.getpid()) - self._own}
        spent = [(name, seconds) for (name, _), seconds in self._seen.items()] + list(self._before.items())
        for name, seconds in spent:
            shares[name] = shares.get(name, 0.0) + seconds
        return {name: round(seconds, 2) for name, seconds in sorted(shares.items())}

    def starved_by_name(self) -> dict[str, float]:
        """Seconds in which the main thread of each process was ready to run, but had no core; all lives together."""
        found: dict[str, float] = {}
        for (name, _), seconds in self._starved.items():
            found[name] = found.get(name, 0.0) + seconds
        return found


def starved_seconds(pid: int) -> float:
    """Time in which a process's main thread waited for a core, 0 if it is gone or the kernel does not count it."""
    try:
        # Not by a file object, which makes nine calls of the kernel's where three will do.
        descriptor = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(descriptor, 128).split()[1]) / 1e9
        finally:
            os.close(descriptor)
    except (OSError, IndexError, ValueError):
        return 0.0


def process_seconds(pid: int) -> float:
    """CPU time of a process so far, 0 if it is gone."""
    try:
        # The clock of a process, as clock_getcpuclockid(3) numbers it: a fortieth of the price of /proc/<pid>/stat.
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError:
        return 0.0
