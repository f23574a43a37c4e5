"""The guard: a small process above the nursery that ends what is left when the nursery, or everybody, is killed.

The nursery ends what its children had started, but not if it is killed itself. If the supervisor dies in the same
moment, no other process knows of them. So the process that the supervisor execs forks before anything else: the child
becomes the nursery, the parent stays the guard. It is a subreaper, so the kernel makes it the parent of whatever the
nursery leaves behind, also of a simulator that went into a session of its own.

The guard is found by no word of the command that started the run: it overwrites its command line and its name, which
`pkill -f` and `killall` look at. It holds no end of a channel, so it hides no process's end. It waits in one call of
`poll` until the supervisor or the nursery is dead; then it ends every process below it and ends as the nursery did.

When the guard itself is killed, the nursery ends all of its children, and the supervisor starts both anew.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
import traceback
from typing import NoReturn

from mlxe_async.ipc.processes import birth, linux
from mlxe_async.ipc.processes.named_memory import NamedMemory

NURSERY_LIMIT_S = 0.4
"For a nursery to end by itself once the supervisor is dead."
SWEEP_LIMIT_S = 5.0
"For what cannot be ended, as in a call of a dead network disk, while the supervisor waits for the guard."


def fork_below_guard(supervisor_pid: int, control: int, tag: str) -> tuple[int, str]:
    """Fork: the child returns and becomes the nursery, the parent guards it and never returns.

    Where no process can be forked, this one becomes the nursery without a guard.

    Args:
        supervisor_pid: who has exec'd this process.
        control: descriptor of the nursery's channel, which the guard closes.
        tag: of the nursery, by which its descendants are found where the kernel does not hand them over.

    Returns:
        Process id of the nursery's parent, and what the guard cannot do, in words; empty if it can do everything.
    """
    guard_pid = os.getpid()
    supervisor = os.pidfd_open(supervisor_pid)
    if os.getppid() != supervisor_pid:  # it is gone, and its number may be another's
        os._exit(birth.EXIT_CONTROL_LOST)
    lacks = _begin_to_adopt()
    area = linux.command_line_area()
    weakness = lacks or ("" if area else "the guard cannot hide its command line from pkill -f")
    try:
        pid = os.fork()
    except OSError as error:
        os.close(supervisor)
        return supervisor_pid, f"no process can be made for the guard: {linux.refusal(error)}"
    if pid != 0:
        os.close(control)
        if area is not None:
            linux.overwrite_command_line(area, f"guard-{supervisor_pid}: ends what process {supervisor_pid} leaves")
        _stand_guard(supervisor_pid, supervisor, pid, f"MLXE_NURSERY={tag}", adopts=not lacks)
    os.close(supervisor)
    os.setpgid(0, 0)  # a signal for the nursery's group is not meant for the guard
    return guard_pid, weakness


def _stand_guard(supervisor_pid: int, supervisor: int, nursery_pid: int, tag: str, *, adopts: bool) -> NoReturn:
    named = NamedMemory()
    try:
        linux.set_process_name(f"guard-{supervisor_pid}")
        linux.die_with_parent(signal.SIGCONT)  # it would not see that end while it is stopped
        status = _guard(supervisor, nursery_pid)
        _sweep(supervisor, None if adopts else tag, named)
    except BaseException:  # noqa: BLE001 a defect of our own must not free anybody
        traceback.print_exc()
        _sweep(supervisor, tag, named)
        os._exit(birth.EXIT_FAILED)
    _end_as(status)


def _begin_to_adopt() -> str:
    try:
        linux.adopt_orphans()
    except OSError as error:
        return f"the guard cannot adopt orphans ({error}); it finds them by their environment"
    return ""


def _guard(supervisor: int, nursery_pid: int) -> int:
    """Wait until one of the two is dead, end the nursery and reap it; returns its wait status.

    A nursery that sees the supervisor's end ends all below it by itself, and knows best what these have named.
    """
    nursery = os.pidfd_open(nursery_pid)
    either = select.poll()
    either.register(supervisor, select.POLLIN)
    either.register(nursery, select.POLLIN)
    either.poll()
    either.unregister(supervisor)
    either.poll(1000 * NURSERY_LIMIT_S)
    linux.signal_process(nursery, signal.SIGKILL)
    return os.waitpid(nursery_pid, 0)[1]


def _sweep(supervisor: int, tag: str | None, named: NamedMemory) -> None:
    """SIGKILL every process below this one until none is left; for a living supervisor at most `SWEEP_LIMIT_S`."""
    deadline = time.monotonic() + SWEEP_LIMIT_S

    def is_late() -> bool:
        return time.monotonic() > deadline and not linux.is_dead(supervisor)

    linux.end_children(is_late, named.note)
    while tag is not None and linux.kill_tagged(tag) and not is_late():
        linux.end_children(is_late, named.note)
    named.remove()


def _end_as(status: int) -> NoReturn:
    """End as the nursery did, by the same code or the same signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the nursery's own is enough
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
