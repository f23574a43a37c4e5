"""What the run runs on: for `run.json`, and for deciding who gets how many cores."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter."""
    names = ("mlxe_async", "numpy", "torch", "gymnasium", "uvloop", "pydantic", "structlog")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def host(cores: int) -> dict[str, Any]:
    """System, machine and cores."""
    return {"system": platform.platform(), "machine": platform.machine(), "cores": cores}


def usable_cores() -> int:
    """Cores this process may use: the smaller of its affinity and its control group's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
