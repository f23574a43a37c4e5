"""Limits of this process without which no command could do anything: address space and descriptors."""

from __future__ import annotations

import resource

from mlxe_async.errors import ResourceError

# Importing torch was measured to take 643 MiB (torch 2.13 for CPUs, one thread); a run takes more.
LEAST_ADDRESS_SPACE = 640 * 2**20
# An event loop and its wake-ups, the standard streams, and a module that is being imported.
LEAST_DESCRIPTORS = 20


def require_descriptors() -> None:
    """Raise a soft limit on descriptors that is lower than a loop and a few files take, or refuse to go on.

    Raises:
        ResourceError: the process may not have that number (`ulimit -n`).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_DESCRIPTORS:
        return
    if hard != resource.RLIM_INFINITY and hard < LEAST_DESCRIPTORS:
        raise ResourceError(
            f"the limit of this process's descriptors is {hard} (ulimit -Hn), expected at least {LEAST_DESCRIPTORS} to "
            "read files at all, and more for a run; raise it: ulimit -n 1024"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_DESCRIPTORS, hard))


def require_address_space() -> None:
    """Refuse to go on where libraries could not even be loaded.

    Raises:
        ResourceError: the process may have too little address space (`ulimit -v`).
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESS_SPACE:
        needed = LEAST_ADDRESS_SPACE // 2**20
        raise ResourceError(
            f"the limit of this process's address space is {limit // 2**20:,} MiB, expected at least {needed:,} MiB to "
            "load its libraries, and more for a run; raise it: ulimit -v unlimited"
        )
