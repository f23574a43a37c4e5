"""The page beside a run: a process of its own that reads the run's folder, and whose end the run does not notice.

Its socket is opened before anything starts, so that a port that is taken is told in time. The process is exec'd once
the run has its folder. It ends when the run does, or with this process, by the kernel's parent-death signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlxe_async.cli.console import Console
from mlxe_async.cli.dashboard.access import Access, token_of
from mlxe_async.cli.dashboard.listening import LOOPBACK, listen, require_library
from mlxe_async.cli.dashboard.serving import TOKEN
from mlxe_async.ipc.processes import linux

MODULE = "mlxe_async.cli.dashboard.serving"
LAST_LOOK_S = 3.0  # to tell each reader the last state
_LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def opened(port: int | None, base: Path, *, stays: bool) -> Companion:
    """The page of a run to come, with its socket and its token.

    Args:
        port: which one; None: one that is free.
        base: the folder that the run's folder is made in.
        stays: whether the page is served on when the run has ended by itself.

    Raises:
        SettingsError: the library is missing, or the token in the environment cannot be one.
        ResourceError: the port is taken, or may not be had.
    """
    require_library()
    token = token_of(os.environ.get(TOKEN))
    listener = listen(port)
    return Companion(listener, Access(LOOPBACK, listener.getsockname()[1], token), base, stays=stays)


class Companion:
    """The page of one run, as the process that runs it sees it.

    Args:
        listener: the socket, which becomes its own.
        access: who may read.
        base: the folder that the run's folder is made in.
        stays: whether the page is served on when the run has ended by itself.
    """

    def __init__(self, listener: socket.socket, access: Access, base: Path, *, stays: bool) -> None:
        self._listener, self._access, self._base, self._stays = listener, access, base, stays
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._console: Console | None = None
        self._ended = asyncio.Event()
        self._is_asked = False
        self._url = f"{access.url}/?token={access.token}"

    @property
    def is_alive(self) -> bool:
        """True if its process runs."""
        return self._process is not None and not self._ended.is_set()

    def attend(self, console: Console) -> None:
        """Tell what happens there from now on."""
        self._console = console

    def begin(self, line: Mapping[str, Any]) -> None:
        """Start the process, once the run has told its name; where that fails the run goes on without."""
        if self._process is not None:
            return
        self._url = f"{self._access.url}/run/{quote(str(line['run']), safe='')}?token={self._access.token}"
        words = [str(self._listener.fileno()), self._access.address, str(self._base.absolute()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, *words],
                env={**os.environ, "PYTHONPATH": _python_path(), TOKEN: self._access.token},
                pass_fds=[self._listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._tell(f"the page cannot be served: {linux.refusal(error)}; the run goes on without it")
            self._ended.set()
            return
        finally:
            self.let_go()
        asyncio.get_running_loop().add_reader(self._pidfd, self._died)
        self._tell(f"the page is at {self._url}")

    async def close(self) -> None:
        """End the process, kill it if it does not, and reap it. May be called twice, and when it was never started."""
        self.let_go()
        self._is_asked = True
        if self.is_alive:
            linux.signal_process(self._pidfd, signal.SIGTERM)
            try:
                async with asyncio.timeout(LAST_LOOK_S):
                    await self._ended.wait()
            except TimeoutError:
                linux.signal_process(self._pidfd, signal.SIGKILL)
                self._died()
            except asyncio.CancelledError:
                linux.signal_process(self._pidfd, signal.SIGKILL)
                self._died()
                raise

    def let_go(self) -> None:
        """Close the socket, if no process has taken it over. May be called twice."""
        self._listener.close()

    async def stay(self) -> None:
        """Serve on, where that was asked for, until a signal comes or the process is dead."""
        if not self._stays or not self.is_alive:
            return
        if self._console is not None:
            self._console.finish(f"the page stays at {self._url}; Ctrl-C ends it")
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        for number in _LEAVING:
            loop.add_signal_handler(number, came.set)
        tasks = [asyncio.create_task(one.wait()) for one in (came, self._ended)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for number in _LEAVING:
                loop.remove_signal_handler(number)

    def _died(self) -> None:
        if self._process is None or self._ended.is_set():
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        code = self._process.wait()
        os.close(self._pidfd)
        self._ended.set()
        if not self._is_asked:
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            self._tell(f"the page's process {how}; the run goes on without it")

    def _tell(self, said: str) -> None:
        if self._console is not None:
            self._console.line(said)


def _python_path() -> str:
    """A checkout that is not installed is found all the same."""
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([*path, str(Path(__file__).parents[3])])
