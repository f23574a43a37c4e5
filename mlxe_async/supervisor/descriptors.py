"""Whether the descriptors that a run needs can be had, found out before anything is started."""

from __future__ import annotations

import os
import resource

from mlxe_async.errors import ResourceError
from mlxe_async.settings import Settings

# A segment has its own and that of its mapping; a process its pidfd, its channel and the file for its stacks.
PER_SEGMENT, PER_PROCESS = 2, 3
SEGMENTS = ("control", "memory", "weights", "tested", "learner", "memorizer", "best")
PROCESSES = ("nursery", "probe", "memorizer", "learner", "evaluator")
# Log, lock, files being written, modules being imported, a fork under way.
IN_PASSING = 24


def reserve_descriptors(settings: Settings) -> None:
    """Count what the supervisor of a run will have open, and raise the soft limit on descriptors if it is too low.

    Raises:
        ResourceError: the hard limit is too low; the message says how many executors would fit.
    """
    used = used_now()
    fixed = PER_SEGMENT * len(SEGMENTS) + PER_PROCESS * len(PROCESSES) + IN_PASSING
    needed = used + fixed + (PER_SEGMENT + PER_PROCESS) * settings.schedule.executors
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        fit = max(0, (hard - used - fixed) // (PER_SEGMENT + PER_PROCESS))
        advice = f"schedule.executors = {fit} would fit" if fit else "not even one executor fits"
        raise ResourceError(
            f"schedule.executors = {settings.schedule.executors} needs {needed} descriptors, this process may have "
            f"{hard} (ulimit -Hn); {advice}, or raise the limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def used_now() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - nothing but the number is of interest
