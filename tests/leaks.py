"""What a test may have left behind: processes, descriptors, threads. Only that of this test session is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator

import uvloop

# Everything that is exec'd below this process inherits the mark, however far it drifts away.
MARK = f"MLXE_TEST_SESSION={uuid.uuid4().hex}"
os.environ.update([MARK.split("=")])

KEPT: set[int] = set()
"Processes that serve the whole session."
KEPT_OPEN: set[int] = set()
"Descriptors that do."
FOREIGN: set[int] = set()
"Living processes that are known to be none of this session's, and are not looked at again."


def keep(pid: int, fd: int) -> None:
    """A process, and a descriptor of this one, serve the whole session and are nothing that is left."""
    KEPT.add(pid)
    KEPT_OPEN.add(fd)


def warm_up() -> None:
    """Let the event loops open what they open once per process and keep."""

    async def nothing() -> None:
        pass

    uvloop.run(nothing())
    asyncio.run(nothing())


def processes() -> dict[int, str]:
    """Living processes below this test session, pid -> name; also those whose parents are gone."""
    found, living = {}, all_pids()
    FOREIGN.intersection_update(living)
    for pid in living - {os.getpid()} - KEPT - FOREIGN:
        with contextlib.suppress(OSError):
            environment = _environment(pid)
            if MARK.encode() in environment.split(b"\0"):
                found[pid] = _read(f"/proc/{pid}/comm").decode(errors="replace").strip()
            elif environment or _is_of_the_kernel(pid):  # while a program begins, it is empty
                FOREIGN.add(pid)
    return found


def _environment(pid: int) -> bytes:
    """Of a process; empty where it has no memory: of a zombie, and of a thread of the kernel."""
    try:
        return _read(f"/proc/{pid}/environ")
    except ProcessLookupError:  # some versions of Linux say so, others that it is empty
        return b""


def _is_of_the_kernel(pid: int) -> bool:
    """Whether a process is a thread of the kernel, which has no environment: a child of kthreadd."""
    parent = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1]
    return parent == b"2" and _read("/proc/2/comm") == b"kthreadd\n"


def _read(path: str) -> bytes:
    with open(path, "rb", 0) as file:  # noqa: PTH123 - of every process after every test; a Path takes most of the time
        return file.read()


def processes_after(seconds: float, but: Collection[int] = ()) -> dict[int, str]:
    """What is still alive, `but` aside, once everything has had up to `seconds` to end."""
    deadline = time.monotonic() + seconds
    while left := {pid: name for pid, name in processes().items() if pid not in but}:
        if time.monotonic() > deadline:
            break
        gone(next(iter(left)), deadline - time.monotonic())
    return left


def all_pids() -> set[int]:
    """Every entry of the process table, zombies included."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - see `_read`


def gone(pid: int, seconds: float) -> bool:
    """Wait until a process is dead, at most `seconds`."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], max(0.0, seconds))[0])
    finally:
        os.close(pidfd)


def descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they lead to."""
    found = {}
    for fd in {*map(int, os.listdir("/proc/self/fd"))} - KEPT_OPEN:  # noqa: PTH208 - see `_read`
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - see `_read`
    kept = of_cuda() if cuda_is_initialised() else ()
    return {fd: target for fd, target in found.items() if not target.startswith((f"/proc/{os.getpid()}/fd", *kept))}


def cuda_is_initialised() -> bool:
    """Whether this process has begun to use a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def of_cuda() -> tuple[str, ...]:
    """What CUDA opens when it is needed and keeps until the process ends: its devices, and events of its own."""
    return "/dev/nvidia", "anon_inode:[eventfd]"


def threads() -> set[str]:
    """Names of the living threads of this process."""
    return {thread.name for thread in threading.enumerate()}


@contextlib.contextmanager
def nothing_left(seconds: float = 5.0) -> Iterator[None]:
    """Fail when the block leaves more processes, descriptors or threads than there were before."""
    processes_before, descriptors_before, threads_before = processes(), descriptors(), threads()
    yield
    left = processes_after(seconds, processes_before)
    assert not left, f"processes left behind: {left}"
    now = descriptors()
    if len(now) > len(descriptors_before):
        gc.collect()
        now = descriptors()
    opened = {fd: target for fd, target in now.items() if descriptors_before.get(fd) != target}
    assert len(now) <= len(descriptors_before), f"descriptors left open: {opened}"
    for thread in threading.enumerate():
        if thread.name not in threads_before:
            thread.join(seconds)
    assert threads() <= threads_before, f"threads left running: {threads() - threads_before}"
