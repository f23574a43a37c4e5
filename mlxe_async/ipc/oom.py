"""Whether the kernel ended a process because memory ran out: it counts such kills, but does not tell whom they met."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

FRESH_S = 1.0  # a kill that was counted so long ago may be that of a death that is looked into now


class OomKills:
    """The kernel's count of processes that it ended for memory: in our control group, else on the whole machine.

    Args:
        files: where to look; the first with a line `oom_kill N` is taken. None: where Linux has them.
    """

    def __init__(self, files: Iterable[Path] | None = None) -> None:
        self._file: Path | None = None
        self._seen = 0
        for file in _places() if files is None else files:
            if (count := _count(file)) is not None:
                self._file, self._seen = file, count
                break
        self._grew_at, self._unclaimed = float("-inf"), 0

    def one_just_now(self) -> bool:
        """Whether the count has grown by more than the deaths that it explained, a second before at most."""
        count, now = None if self._file is None else _count(self._file), time.monotonic()
        if now - self._grew_at >= FRESH_S:
            self._unclaimed = 0
        if count is not None and count > self._seen:
            self._unclaimed += count - self._seen
            self._seen, self._grew_at = count, now
        if self._unclaimed:
            self._unclaimed -= 1
            return True
        return False


def _places() -> Iterator[Path]:
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


def _count(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError):
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
