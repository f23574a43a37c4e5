"""The few Linux calls that processes are made, named and ended with.

Signals go through a pidfd wherever possible: a pid may be given to a stranger once its owner is reaped, a pidfd never
means anybody else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import select
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mlxe_async.errors import ResourceError
from mlxe_async.ipc.processes.limits import LIMITS

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_SIGNAL_PROCESS_GROUP = 4

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LONGEST_FROM_HEAP = 32 << 20  # the most that glibc takes
_KEPT_FREE, _GROWTH = 256 << 20, 16 << 20

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LACKING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"What the kernel says when it makes no more processes, or opens nothing more for this one."
_SCARCE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)


def set_process_name(name: str) -> None:
    """Name this process as `ps` and `pgrep` show it; only the first 15 bytes count."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def set_own_name(name: str) -> None:
    """The same without ctypes, whose import takes 10 ms; nothing where /proc cannot be written to."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_bytes(name.encode()[:15])


def command_line_area() -> tuple[int, int] | None:
    """Where in this process's memory its command line lies, as the kernel shows it: begin and end, None if unknown."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
    except (OSError, ValueError, IndexError):
        return None
    return (begin, end) if 0 < begin < end else None


def overwrite_command_line(area: tuple[int, int], text: str) -> None:
    """Have `ps` and `pkill -f` see `text` as this process's command line, as much of it as fits."""
    import ctypes

    begin, end = area
    size = end - begin
    ctypes.memmove(begin, text.encode()[: size - 1].ljust(size, b"\0"), size)


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the thread that made this process ends.

    The caller compares `os.getppid()` with the parent it expects afterwards: the parent may already be gone.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal_number))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, instead of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@functools.cache
def _libc() -> object:
    import ctypes  # here, because the supervisor never needs it and starts faster without

    return ctypes.CDLL(None, use_errno=True)


def keep_freed_memory() -> bool:
    """Have the allocator of this process keep up to 256 MiB that were freed, for what is allocated next.

    glibc gives arrays of 128 KiB and more back to the kernel at once, and each page of the next one is made anew. Where
    the same arrays come again in every update that takes an eighth of it. Returns False where the C library has no such
    settings.
    """
    import ctypes

    settings = ((_M_MMAP_THRESHOLD, _LONGEST_FROM_HEAP), (_M_TRIM_THRESHOLD, _KEPT_FREE), (_M_TOP_PAD, _GROWTH))
    try:
        mallopt = _libc().mallopt  # type: ignore[attr-defined] # foreign library
    except AttributeError:
        return False
    return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)


def _prctl(option: int, value: int | bytes) -> None:
    import ctypes

    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    if _libc().prctl(ctypes.c_int(option), argument, zero, zero, zero) != 0:  # type: ignore[attr-defined] # foreign library
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def signal_process(pidfd: int, signal_number: int) -> bool:
    """Send a signal to exactly the process behind `pidfd`; False when it is gone."""
    try:
        signal.pidfd_send_signal(pidfd, signal_number)
    except ProcessLookupError:
        return False
    return True


def signal_group(pidfd: int, pid: int, signal_number: int) -> bool:
    """Send a signal to the process group that `pid` leads, even when the leader itself is gone.

    Args:
        pidfd: descriptor of the leader.
        pid: its number, used where the kernel (before 6.9) cannot signal a group through a pidfd. That way is only
            safe while the leader is not yet reaped.
        signal_number: what to send.

    Returns:
        False when no process is left in the group.
    """
    try:
        signal.pidfd_send_signal(pidfd, signal_number, None, _PIDFD_SIGNAL_PROCESS_GROUP)
    except ProcessLookupError:
        return False
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        try:
            os.killpg(pid, signal_number)
        except (ProcessLookupError, PermissionError):
            return False
    return True


def close_all_except(keep: Iterable[int]) -> None:
    """Close every open descriptor but 0, 1, 2 and those in `keep`."""
    kept = {0, 1, 2, *keep}
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd not in kept:
            # The listing's own descriptor is in the list and closed by now.
            with contextlib.suppress(OSError):
                os.close(fd)


def open_missing_std() -> None:
    """Open /dev/null on those of 0, 1 and 2 that are closed, so that no other descriptor lands there."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


def redirect_std(output: int | None = None) -> None:
    """Point stdin to /dev/null, and stdout and stderr to `output`, or to /dev/null too."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    for fd in (1, 2):
        os.dup2(null if output is None else output, fd)
    if null > 2:
        os.close(null)


def reset_signals() -> None:
    """Unblock all signals, give each its default action, then ignore those that ask the whole program to stop.

    Only the supervisor decides when a child stops. A terminal's Ctrl-C, or a service manager that signals every
    process it can find, must not make children vanish under a supervisor that is still draining them.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # Real-time signals of the C library refuse.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    ignore_stop_signals()


def receive_signals() -> None:
    """Unblock all signals, and let the end of a child be heard of, whatever the parent of this process had set."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def ignore_stop_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP pass without effect, whatever an environment has set meanwhile.

    A handler that does nothing instead of SIG_IGN: exec resets handlers, but hands SIG_IGN on, and a simulator that
    cannot be terminated would hang the environment that closes it.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _pass)


def default_stop_signals() -> None:
    """Give SIGINT, SIGTERM and SIGHUP their default actions, for what a child forks without exec."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _pass(_number: int, _frame: object) -> None:
    pass


def children() -> list[int]:
    """Direct children of this process, the dead but not yet reaped included."""
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        return [int(word) for word in listing.read_text().split()]
    except FileNotFoundError:
        return [pid for pid in all_pids() if _parent(pid) == os.getpid()]


def end_children(give_up: Callable[[], bool], look: Callable[[list[int]], None] = lambda _pids: None) -> None:
    """SIGKILL and reap children, those that a sub-reaper adopts meanwhile included, until none is left.

    Args:
        give_up: asked before each pass; True ends the attempt.
        look: shown the children of each pass before they are killed.
    """
    pause_s = 0.002
    while not give_up():
        found = children()
        look(found)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.select([], [], [], pause_s)
        pause_s = min(2 * pause_s, 0.05)


def is_dead(pidfd: int) -> bool:
    """Return whether the process behind `pidfd` is dead."""
    look = select.poll()  # unlike select, it takes descriptors beyond 1023
    look.register(pidfd, select.POLLIN)
    return bool(look.poll(0))


def reap_session(session: int) -> None:
    """Reap what has died of our children that belong to a session: descendants that the first process adopted."""
    for pid in children():
        # It may be another's child by now, or have been reaped.
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                os.waitpid(pid, os.WNOHANG)


def all_pids() -> list[int]:
    """Every process visible to us."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def start_environment(pid: int) -> list[str]:
    """The environment a process was exec'd with, as `NAME=value` strings; empty when it cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def kill_tagged(tag: str) -> int:
    """SIGKILL every process that was exec'd below a process with `tag` (`NAME=value`) in its environment.

    Returns:
        How many were signalled.
    """
    count = 0
    for pid in all_pids():
        if pid == os.getpid() or tag not in start_environment(pid):
            continue
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                # Asked again through the descriptor's lifetime: the pid may have changed hands in between.
                if tag in start_environment(pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    count += 1
            finally:
                os.close(pidfd)
    return count


def lack(error: BaseException) -> ResourceError | None:
    """The same error as one about the host, if what the kernel refused is memory, descriptors or room on a disk."""
    if isinstance(error, MemoryError):
        return ResourceError(f"not enough memory: {error or 'it was refused'}; free some, or raise its limit")
    if not isinstance(error, OSError) or error.errno not in _SCARCE:
        return None
    place = f"{error.filename}: " if error.filename else ""
    return ResourceError(f"{place}{refusal(error)}")


def refusal(error: Exception) -> str:
    """Why the kernel would not make a process or a thread, or what belongs to one, and what can be done."""
    reason = getattr(error, "strerror", None) or error
    number = getattr(error, "errno", None)
    if number == errno.ENOMEM:
        return f"{reason}; free some memory, or raise its limit"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}; make room on the disk, or raise the quota"
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{reason}; this process may have {most} descriptors (ulimit -n): close some, or raise the limit"
    if number == errno.ENFILE:
        return f"{reason}; close some files, or raise the limit of the host (fs.file-max)"
    return f"{reason}; {LIMITS.met()}"


class Scheduling(NamedTuple):
    """How the kernel treated a process so far, all of its threads together.

    Args:
        run_ns: nanoseconds on a core.
        wait_ns: nanoseconds of waiting for one; the kernel adds a wait when it is over.
        ready: whether a thread runs or waits for a core at this moment.
    """

    run_ns: int
    wait_ns: int
    ready: bool


def scheduling(pid: int) -> Scheduling | None:
    """Return how the threads of `pid` have been treated; None when it is gone."""
    found = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            # A thread may end while we look.
            with contextlib.suppress(OSError, ValueError):
                run_ns, wait_ns, _ = (thread / "schedstat").read_text().split()
                state = (thread / "stat").read_text().rpartition(") ")[2]
                found.append(Scheduling(int(run_ns), int(wait_ns), state.startswith("R")))
    if not found:
        return None
    ready = any(one.ready for one in found)
    return Scheduling(sum(one.run_ns for one in found), sum(one.wait_ns for one in found), ready)
