"""The companion's own process: becomes what its name says, then calls its entry while the supervisor lives.

It is nice to all others, for the cores belong to the run. Signals that ask the whole program to stop do not reach it:
the run that is saving itself is still looked at. When the supervisor asks it to end or is dead, `Beside` says so; what
has not ended within a moment is ended.

    python -P -m mlxe_async.ipc.processes.companion_main FD SUPERVISOR_PID NAME
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from mlxe_async.errors import MlxeError, raised_at
from mlxe_async.ipc.processes import linux
from mlxe_async.ipc.processes.birth import EXIT_CONTROL_LOST, EXIT_FAILED, find_entry

LEFT_S = 0.8
"A companion that has not ended by itself is ended so long after it was asked to, or after the supervisor's death."
NICENESS = 10
LONGEST = 2000


class Beside:
    """A companion's view of the run that it is beside: whether that is over, and how something is told.

    Args:
        channel: to the supervisor.
        supervisor: descriptor of its process.
    """

    def __init__(self, channel: socket.socket, supervisor: int) -> None:
        self._channel, self._supervisor = channel, supervisor
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return a descriptor that is readable once it is time to end, for a loop or a `select`."""
        return self._over

    @property
    def is_over(self) -> bool:
        """True once it is time to end: it was asked for, or the supervisor is dead."""
        look = select.poll()
        look.register(self._over, select.POLLIN)
        return bool(look.poll(0))

    def tell(self, line: str) -> None:
        """Tell the supervisor a line of at most 2000 letters; without effect once it is dead."""
        self._send(" ", line)

    def fail(self, line: str) -> None:
        """Tell the supervisor, in a line, why this process is about to end."""
        self._send("!", line)

    def watch(self) -> None:
        """Wait for the end, say so, and end this process a moment later whatever it does; for a thread."""
        either = select.poll()
        for descriptor in (self._supervisor, self._channel.fileno()):
            either.register(descriptor, select.POLLIN | select.POLLHUP)
        either.poll()
        os.eventfd_write(self._over, 1)
        threading.Event().wait(LEFT_S)
        os._exit(EXIT_CONTROL_LOST)

    def _send(self, mark: str, line: str) -> None:
        text = " ".join(line.split())[:LONGEST]
        with contextlib.suppress(OSError):  # no process is left to hear it
            self._channel.sendall(f"{mark}{text}\n".encode(errors="backslashreplace"))


def main(descriptor: int, supervisor_pid: int, name: str) -> int:
    """Live as a companion. Returns the exit code."""
    root = str(Path(__file__).parents[3])
    if not root.endswith(("site-packages", "dist-packages")):  # behind all that is installed
        sys.path[:] = [*(path for path in sys.path if path != root), root]
    linux.receive_signals()
    linux.ignore_stop_signals()
    supervisor = os.pidfd_open(supervisor_pid)
    if os.getppid() != supervisor_pid:  # it is gone, and its number may be another's
        return EXIT_CONTROL_LOST
    linux.set_process_name(name)
    linux.die_with_parent(signal.SIGCONT)  # it would not see that end while it is stopped
    os.nice(NICENESS)
    channel = socket.socket(fileno=descriptor)
    request = _line_of(channel)
    if request is None:
        return EXIT_CONTROL_LOST
    beside = Beside(channel, supervisor)
    threading.Thread(target=beside.watch, daemon=True, name="mlxe-beside").start()
    try:
        entry = cast("Callable[[dict[str, Any], Beside], None]", find_entry(request["entry"]))
        entry(request["spec"], beside)
    except MlxeError as error:
        beside.fail(str(error))
        return EXIT_FAILED
    except BaseException as error:  # noqa: BLE001 - also SystemExit from a foreign library; told, with its place
        beside.fail(f"{error!r} {raised_at(error, anywhere=True)}")
        return EXIT_FAILED
    return 0


def _line_of(channel: socket.socket) -> dict[str, Any] | None:
    """Return the line that the supervisor hands over; None if it has died before."""
    data = b""
    while not data.endswith(b"\n"):
        more = channel.recv(2**16)
        if not more:
            return None
        data += more
    request: dict[str, Any] = json.loads(data)
    return request


if __name__ == "__main__":
    code = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    # Not sys.exit: threads and exit hooks of foreign packages may never end.
    os._exit(code)
