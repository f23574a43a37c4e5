"""What the host allows a run, before anything is started: file descriptors, and the least memory."""

from __future__ import annotations

import os
import resource

from mlxe_async.errors import ResourceError
from mlxe_async.ipc.processes.linux import refusal
from mlxe_async.ipc.shared.segments import BytePlan, available_memory
from mlxe_async.settings import Settings
from mlxe_async.settings.effects import built_in

# A segment has its own and that of its mapping; a process its pidfd, its channel and the file for its stacks.
PER_SEGMENT, PER_PROCESS = 2, 3
SEGMENTS = ("control", "memory", "weights", "tested", "learner", "memorizer", "best")
PROCESSES = ("nursery", "guard", "probe", "memorizer", "learner", "evaluator")
# Log, lock, files being written, modules being imported, the thread's and the loop's.
IN_PASSING = 32
# A copy of what a fork hands over, which may have to wait: the memorizer and the learner are handed every lane.
PER_LANE_IN_PASSING = 1
# Its lane, and what it leaves to a successor.
PER_EXECUTOR = 2 * PER_SEGMENT + PER_PROCESS + PER_LANE_IN_PASSING
# What an embedding program or a library opens meanwhile is not ours to count.
ROOM = 2
LEAST_BYTES = 180 << 20  # that the processes of a run take together while all are idle
LEAST_ROW_BYTES = 40  # what all columns of a row but its observations and the algorithm's own take together


def reserve_descriptors(settings: Settings) -> None:
    """Count what the supervisor of a run will have open, and raise the soft limit on descriptors if it is too low.

    Raises:
        ResourceError: the hard limit is too low; the message says how many executors would fit.
    """
    try:
        used = used_now()
    except OSError as error:  # not even one more can be opened
        raise ResourceError(f"the open descriptors cannot be counted: {refusal(error)}") from error
    fixed = PER_SEGMENT * len(SEGMENTS) + PER_PROCESS * len(PROCESSES) + IN_PASSING
    needed = used + fixed + PER_EXECUTOR * settings.schedule.executors
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        fit = max(0, (hard - used - fixed) // PER_EXECUTOR)
        advice = f"schedule.executors = {fit} would fit" if fit else "not even one executor fits"
        raise ResourceError(
            f"schedule.executors = {settings.schedule.executors} needs {needed} descriptors, this process may have "
            f"{hard} (ulimit -Hn); {advice}, or raise the limit"
        )
    # Not all that may be had: programs that environments start inherit it, and some walk through every number below.
    most = ROOM * needed if hard == resource.RLIM_INFINITY else min(hard, ROOM * needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def expect_memory(settings: Settings) -> None:
    """Refuse a host that has too little memory for any run, or for the smallest rows that there are.

    Raises:
        ResourceError: in words with both numbers.
    """
    if (left := available_memory()) < LEAST_BYTES:
        raise ResourceError(
            f"this host or its control group has {left / 2**20:.0f} MiB of memory left, expected at least "
            f"{LEAST_BYTES >> 20} MiB, of which torch takes most; end other programs, or raise the group's limit"
        )
    algorithm = built_in(settings.algorithm.name)
    if algorithm and algorithm.memory == "replay":
        least, rows = BytePlan(), settings.capacity_rows
        least.add(f"at least, for memory.capacity_rows = {rows}", rows * LEAST_ROW_BYTES)
        least.check(left)


def used_now() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - nothing but the number is of interest
