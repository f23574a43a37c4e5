"""Which limit the kernel means when it makes no more processes: that of a control group, or that of the user.

The refusal itself is the same for both. But a control group counts how often it has refused (`pids.events`), and says
how many processes it has now.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


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


LIMITS = ProcessLimits()
"Those of this process, from here on."
