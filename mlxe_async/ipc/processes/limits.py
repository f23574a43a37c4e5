"""Limits of the kernel, told by control groups: which one allows no more processes, and what it ended for memory.

A refusal to make a process is the same for a control group's limit and for the user's. But a control group counts how
often it has refused (`pids.events`), and says how many processes it has now. Kills for memory are counted too, without
a word on which processes they met.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

FRESH_S = 1.0  # a kill that was counted so long ago may be that of a death that is looked into now


@dataclass(frozen=True)
class _Group:
    folder: Path
    most: int
    now: int
    refusals: int


class ProcessLimits:
    """The limits on processes and threads above this process.

    Args:
        proc: where Linux tells of processes.
        cgroups: where control groups are.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._refusals = {group.folder: group.refusals for group in self._groups()}

    def met(self) -> str:
        """The limit that a refusal of just now is due to, and what can be done, in words."""
        groups = list(self._groups())
        full = [group for group in groups if group.now >= group.most]
        # What has ended meanwhile is not counted any more; that it was refused is.
        full = full or [group for group in groups if group.refusals > self._refusals.get(group.folder, 0)]
        self._refusals.update((group.folder, group.refusals) for group in groups)
        if full:
            group = min(full, key=lambda group: group.most - group.now)
            return (
                f"the control group {group.folder} may have {group.most} processes and threads (pids.max), and has "
                f"{group.now}: end some, or raise the limit"
            )
        most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        if most != resource.RLIM_INFINITY:
            return f"this user may have {most} processes and threads (ulimit -u): end some, or raise the limit"
        return "end some processes, or raise the limit of the control group (pids.max) or of the host (kernel.pid_max)"

    def _groups(self) -> Iterator[_Group]:
        """Each control group above this process that limits its processes, both versions of the interface."""
        try:
            lines = (self._proc / "self" / "cgroup").read_text(errors="surrogateescape").splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                roots = [self._cgroups, self._cgroups / "unified"]
            elif "pids" in controllers.split(","):
                roots = [self._cgroups / "pids"]
            else:
                continue
            for root in roots:
                group = root / path.strip("/")
                # Inside a container the path may be the host's: then only the root of what we can see counts.
                for folder in (group, *group.parents):
                    if (most := _number(folder / "pids.max")) is not None:
                        now = _number(folder / "pids.current") or 0
                        yield _Group(folder, most, now, _refusals(folder / "pids.events"))
                    if folder == root:
                        break


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return None


def _refusals(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "max":
                return int(value)
    return 0


class OomKills:
    """The kernel's count of processes that it ended for memory: in our control group, else on the whole machine.

    Args:
        files: where to look; the first with a line `oom_kill N` is taken. None: where Linux has them.
    """

    def __init__(self, files: Iterable[Path] | None = None) -> None:
        self._file: Path | None = None
        self._seen = 0
        for file in _memory_files() if files is None else files:
            if (count := _kills_in(file)) is not None:
                self._file, self._seen = file, count
                break
        self._grew_at, self._unclaimed = float("-inf"), 0

    def one_just_now(self) -> bool:
        """Return whether the count has grown by more than the deaths that it explained, a second before at most."""
        count, now = None if self._file is None else _kills_in(self._file), time.monotonic()
        if now - self._grew_at >= FRESH_S:
            self._unclaimed = 0
        if count is not None and count > self._seen:
            self._unclaimed += count - self._seen
            self._seen, self._grew_at = count, now
        if self._unclaimed:
            self._unclaimed -= 1
            return True
        return False


def _memory_files() -> Iterator[Path]:
    """Those of our own control group, versions 2 and 1, seen from outside and inside a container; then the host's."""
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines():
            number, controllers, path = line.split(":", 2)
            inner = path.lstrip("/")
            if number == "0":
                yield from (root / inner / "memory.events", root / "unified" / inner / "memory.events")
            elif "memory" in controllers.split(","):
                yield from (root / "memory" / inner / "memory.oom_control", root / "memory" / "memory.oom_control")
    yield root / "memory.events"
    yield Path("/proc/vmstat")


def _kills_in(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError):
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


LIMITS = ProcessLimits()
"The limits on processes above this one, from here on."
