"""The process that serves the page: until a signal, or beside a run as long as that lasts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from mlxe_async.cli.dashboard.access import Access
from mlxe_async.ipc.processes import linux

PROCESS = "mlxe-dashboard"
TOKEN = "MLXE_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
NICER = 10  # whatever runs beside it has the cores first
FIRST_TO_GO = 500  # when memory runs out, rather than a process of a run


async def serve(
    listener: socket.socket, access: Access, base: Path, ending: Sequence[signal.Signals]
) -> signal.Signals:
    """Serve until one of some signals comes; returns which."""
    from mlxe_async.cli.dashboard.server import Server

    loop = asyncio.get_running_loop()
    came: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in ending:
        loop.add_signal_handler(number, came.put_nowait, number)
    try:
        async with Server(listener, access, base).serving():
            return await came.get()
    finally:
        for number in ending:
            loop.remove_signal_handler(number)


def give_way() -> None:
    """Leave cores and memory to others first."""
    with contextlib.suppress(OSError):
        os.nice(NICER)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_GO))


def main(arguments: Sequence[str]) -> None:
    """Serve beside a run: descriptor of the socket, address, folder, and who started this, at whose end it ends."""
    descriptor, address, base, parent = arguments
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    # Ctrl-C in a terminal is for the run, which ends this process when it has ended.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    linux.set_own_name(PROCESS)
    give_way()
    for name in ("asyncio", "aiohttp"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    listener = socket.socket(fileno=int(descriptor))
    access = Access(address, listener.getsockname()[1], os.environ.pop(TOKEN))
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(listener, access, Path(base), [signal.SIGTERM]))


if __name__ == "__main__":
    main(sys.argv[1:])
