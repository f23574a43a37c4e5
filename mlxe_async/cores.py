"""Cores: how many this process may use, and how many of them are left to play on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

FEW = 2
"""Cores up to which the memory lives in the learner's process, unless the settings say otherwise."""


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may use: the smaller of its affinity and of the quotas of its control groups, rounded up.

    Args:
        root: where the file systems `proc` and `sys` are.
    """
    cores = len(os.sched_getaffinity(0))
    return min([cores, *(max(1, -(-quota // period)) for quota, period in _quotas(root))])


def left_to_play(cores: int, *, learner_threads: int = 1, memorizer: str = "auto") -> int:
    """Cores that are left beside the learner and the memorizer, at least one.

    Args:
        cores: those that may be used.
        learner_threads: threads of one update.
        memorizer: where the memory lives: `"own"` process, the `"learner"`'s, or `"auto"`.
    """
    own = memorizer == "own" or (memorizer == "auto" and cores > FEW)
    return max(1, cores - max(1, learner_threads) - int(own))


def threads_of_each(executors: int, cores: int) -> int:
    """Threads on which each executor may step its environments, so that all of them fit on the cores; at least one."""
    return max(1, cores // executors)


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Microseconds of all cores together, and in which time, of each control group around this process."""
    groups, system = root / "sys/fs/cgroup", root / "proc/self/cgroup"
    try:
        lines = system.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = Path(path.lstrip("/"))
        # In a container of its own the process sees its group at the root, whatever the path says.
        if number == "0" and not controllers:
            for group in (inside, *inside.parents):
                yield from _pair(groups / group / "cpu.max")
        elif "cpu" in controllers.split(","):
            for group in (inside, *inside.parents):
                yield from _pair(*(groups / "cpu" / group / f"cpu.cfs_{name}_us" for name in ("quota", "period")))


def _pair(*files: Path) -> Iterator[tuple[int, int]]:
    """Quota and period where there is a limit; in the first generation of control groups -1 is none."""
    try:
        quota, period = map(int, " ".join(file.read_text() for file in files).split())
    except (OSError, ValueError):  # no such group is seen here, or "max"
        return
    if quota > 0 and period > 0:
        yield quota, period
