"""A companion: a process beside a run that only looks on, such as one that exports the log, or that serves a page.

It is started by exec, apart from the nursery, whose children share the run's memory and die with it. It holds nothing
of the run's: no memory, no lock, no core of its own. The run goes on alike whether it lives, hangs or dies.

A companion ends when its work is done, when it is asked to, and when the supervisor is dead, by whatever signal. The
other end of its channel, and what it does first, are in `companion_main`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mlxe_async.errors import ResourceError
from mlxe_async.ipc.processes import linux
from mlxe_async.ipc.processes.nursery import ONE_THREAD, ExitStatus, module_path

PROGRAM = ("-P", "-m", "mlxe_async.ipc.processes.companion_main")
GRACE_S = 1.0
"For a companion to end after it was asked to, before it is killed."
MOST_BYTES = 2**16
"In one line, of what a companion is handed and of what it tells."


class Companion:
    """One process beside a run; all methods are called from the thread of one running loop.

    Args:
        name: as `ps` shows it, of at most 15 letters, such as `mlxe-export`.
        entry: `"package.module:function"`, called as `entry(spec, beside)` with a `companion_main.Beside`.
        spec: plain JSON handed to the entry; not on the command line, so it may hold a secret.
        on_ended: called with a sentence when the process has ended before `finish` or `stop`.
        on_told: called with each line that the entry tells by `beside.tell`.
    """

    def __init__(
        self,
        name: str,
        entry: str,
        spec: Mapping[str, Any],
        *,
        on_ended: Callable[[str], None] | None = None,
        on_told: Callable[[str], None] | None = None,
    ) -> None:
        self.name, self._entry, self._spec = name, entry, dict(spec)
        self._on_ended = on_ended or (lambda _: None)
        self._on_told = on_told or (lambda _: None)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._pidfd = -1
        self._rest = b""
        self._failure = ""
        self._is_asked = False
        self._ended: asyncio.Future[ExitStatus]

    @property
    def pid(self) -> int | None:
        """Process id; None before it is started and once it has ended."""
        return self._process.pid if self._process is not None and self._pidfd >= 0 else None

    def start(self) -> None:
        """Start the process. Returns at once.

        Raises:
            ResourceError: the kernel makes no more processes, or opens nothing more for this one.
        """
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as made:
            try:
                ours, theirs = socket.socketpair()
                made.callback(ours.close)
                with theirs:
                    process = _popen(theirs.fileno(), self.name)
                pidfd = os.pidfd_open(process.pid)
            except OSError as error:
                raise ResourceError(f"{self.name} cannot be started: {linux.refusal(error)}") from error
            made.pop_all()
        self._process, self._pidfd = process, pidfd
        self._channel, self._ended = ours, loop.create_future()
        ours.setblocking(False)
        request = json.dumps({"entry": self._entry, "spec": self._spec}).encode() + b"\n"
        assert len(request) <= MOST_BYTES, "a companion is handed a few words"  # noqa: S101 - what we hand is ours
        ours.send(request)  # there is room for all of it: nothing has been sent before
        loop.add_reader(ours, self._hear)
        loop.add_reader(self._pidfd, self._bury)

    async def finish(self, limit_s: float) -> str:
        """Wait until it has ended by itself, at most `limit_s` seconds; then end it.

        Returns:
            How it fell short, in words: it had to be ended, or ended otherwise than by code 0. Empty if it did not.
        """
        self._is_asked = True
        if self._process is None:
            return ""
        await asyncio.wait([self._ended], timeout=limit_s)
        late = "" if self._ended.done() else f"{self._who} was not done after {limit_s:g} s"
        await self.stop()
        status = self._ended.result()
        return late or ("" if status.code == 0 else self._sentence(status))

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask it to end, and end it after `grace_s` seconds; may be called twice, and before it was started."""
        self._is_asked = True
        if self._process is None or self._ended.done():
            return
        self._close()
        linux.signal_process(self._pidfd, signal.SIGCONT)
        try:
            await asyncio.wait([self._ended], timeout=grace_s)
        finally:
            if not self._ended.done():
                linux.signal_group(self._pidfd, self._process.pid, signal.SIGKILL)
                self._bury()

    @property
    def _who(self) -> str:
        return f"{self.name} (pid {self._process.pid if self._process else 0})"

    def _sentence(self, status: ExitStatus) -> str:
        return f"{self._who} {status.sentence}" + (f": {self._failure}" if self._failure else "")

    def _hear(self) -> None:
        assert self._channel is not None  # noqa: S101 - it is a reader of the loop
        try:
            data = self._channel.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # its end is told by the process itself
            asyncio.get_running_loop().remove_reader(self._channel)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_BYTES:
            self._rest = b""
        for line in lines:
            told = line[1:].decode(errors="replace")
            if line[:1] == b"!":
                self._failure = told
            else:
                self._on_told(told)

    def _close(self) -> None:
        if self._channel is not None:
            self._hear()
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
            self._channel = None

    def _bury(self) -> None:
        """Runs once, when the process is dead or has been killed."""
        assert self._process is not None  # noqa: S101 - it has been started
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._close()
        code = self._process.wait()
        # What it has forked, if anything, is of its group.
        linux.signal_group(self._pidfd, self._process.pid, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        status = ExitStatus(code, None) if code >= 0 else ExitStatus(None, -code)
        self._ended.set_result(status)
        if not self._is_asked:
            self._on_ended(self._sentence(status))


def _popen(fd: int, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *PROGRAM, str(fd), str(os.getpid()), name],
        env={**os.environ, "PYTHONPATH": module_path(), **ONE_THREAD},
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
