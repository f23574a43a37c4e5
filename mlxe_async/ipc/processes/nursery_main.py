"""The nursery's own process: imports what is slow to import, forks children from the warm copy, guards them.

Started by exec and single-threaded, so forking is safe. Its parent is the guard (`guard`), which the supervisor
has exec'd and which ends with it. The nursery ends every process group it has made when the supervisor is gone, seen
twice: the control socket closes, and the kernel signals the end of the parent. As a sub-reaper it becomes the parent
of whatever its children leave behind, so that even a simulator that went into a session of its own is found and ended
with its role.

The parent-death signal is one that can be handled, not SIGKILL: a nursery that dies at once could not take the
grandchildren along. Only while it has no children yet (during the first, long import, which may spend a second inside
one C call) SIGKILL is the better choice.

    python -P -m mlxe_async.ipc.processes.nursery_main FD SUPERVISOR_PID TAG [PATH ...]
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxe_async.errors import ProtocolError, ResourceError
from mlxe_async.ipc.messages.channel import ChildChannel, ControlLost
from mlxe_async.ipc.messages.frames import Message
from mlxe_async.ipc.processes import birth, linux
from mlxe_async.ipc.processes.guard import fork_below_guard
from mlxe_async.ipc.processes.named_memory import NamedMemory

PROCESS_NAME = "mlxe-nursery"
OUTPUT_LIMIT = 10 * 1024 * 1024
_OUTPUT_CHECK_S = 0.5
_SHUTDOWN_LIMIT_S = 5.0


@dataclass
class _Child:
    pid: int
    pidfd: int
    tag: str
    output: str | None
    reap_id: int | None = None
    "The request to answer once the child is dead; None while there is none."


class NurseryMain:
    """State and loop of the nursery process."""

    def __init__(self, channel: ChildChannel, parent_pid: int, tag: str) -> None:
        self._channel = channel
        self._parent_pid = parent_pid
        self._tag = tag
        self._pid = os.getpid()
        self._children: dict[int, _Child] = {}
        self._named = NamedMemory()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)

    def run(self) -> None:
        """Serve requests until the supervisor is gone."""
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGCONT, lambda *_: self._end_if_orphaned())
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            self._guard()
            while True:
                for key, _ in selector.select(_OUTPUT_CHECK_S if self._children else None):
                    if key.fileobj is self._channel:
                        self._answer_all()
                    else:
                        self._forget_wakeups()
                self._collect()
                self._limit_outputs()

    def introduce(self, weakness: str) -> None:
        """Tell the supervisor who this is, for it has started only the guard, and what the guard cannot do."""
        pidfd = os.pidfd_open(self._pid)
        self._channel.send({"id": 0, "hello": {"pid": self._pid, "weakness": weakness}, "fds": 1}, [pidfd])
        os.close(pidfd)

    def shut_down(self, code: int = 0) -> None:
        """SIGKILL every group, then everything that turns up as an orphan, until nothing is left; then end."""
        deadline = time.monotonic() + _SHUTDOWN_LIMIT_S
        self._named.note_groups(self._children)
        for child in self._children.values():
            with contextlib.suppress(OSError):
                linux.signal_group(child.pidfd, child.pid, signal.SIGKILL)
        linux.end_children(lambda: time.monotonic() > deadline, self._named.note)
        self._named.remove()
        os._exit(code)

    def _guard(self) -> None:
        linux.die_with_parent(signal.SIGCONT if self._children else signal.SIGKILL)
        self._end_if_orphaned()

    def _end_if_orphaned(self) -> None:
        # The signal is one that also wakes a process that was stopped. Without a guard it also comes when only the
        # thread that started us ends; then the parent's pid stays. A child that gets it is not the one meant.
        if os.getpid() == self._pid and os.getppid() != self._parent_pid:
            self.shut_down()

    def _answer_all(self) -> None:
        while True:
            message = self._channel.receive(0)
            if message is None:
                return
            try:
                result = self._answer(message)
            except ProtocolError:
                # Descriptors and messages are out of step: whatever were forked now might get the wrong ones.
                raise
            except Exception as error:  # noqa: BLE001 a refused request must not end the guardian
                self._channel.send({"id": message.get("id"), "error": birth.describe(error)})
                continue
            if result is not None:
                answer, fds = result
                self._channel.send({"id": message["id"], "result": answer, "fds": len(fds)}, fds)

    def _answer(self, message: Message) -> tuple[dict[str, Any], list[int]] | None:
        match message["do"]:
            case "preload":
                return self._preload(message["modules"]), []
            case "fork":
                child = self._fork(message)
                return {"pid": child.pid}, [child.pidfd]
            case "hold":  # descriptors that the next fork takes, too
                return None
            case "drop":  # which it does not take after all
                for fd in self._channel.take_fds(message["count"]):
                    os.close(fd)
                return None
            case "reap":
                self._reap(message["pid"], message["id"])
                return None
            case other:
                raise ValueError(f"unknown request {other!r}")

    def _preload(self, modules: list[str]) -> dict[str, Any]:
        begin = time.monotonic()
        failures = {}
        for module in modules:
            try:
                importlib.import_module(module)
            except BaseException as error:  # noqa: BLE001 a package that calls exit() must not end the guardian
                failures[module] = birth.describe(error)
        # Not collected before: children would fill the holes that garbage leaves, and so copy page after page.
        gc.freeze()
        return {"seconds": time.monotonic() - begin, "failures": failures}

    def _fork(self, message: Message) -> _Child:
        names: list[str] = message["fd_names"]
        fds = self._channel.take_fds(len(names))
        try:
            request = birth.Birth(
                name=message["name"],
                entry=message["entry"],
                spec=birth.prepared(message["entry"], message["spec"]),
                epoch=message["epoch"],
                fds=dict(zip(names, fds, strict=True)),
                output=message["output"],
                oom_score_adj=message["oom_score_adj"],
                tag=f"{self._tag}:{message['name']}:{message['epoch']}",
            )
            # From here on our own end must be orderly: there is a child to take along.
            linux.die_with_parent(signal.SIGCONT)
            try:
                pid = os.fork()
            except OSError as error:  # whichever it is, the host lacks something
                raise ResourceError(f"{request.name} cannot be forked: {linux.refusal(error)}") from error
            if pid == 0:
                birth.live(request, self._pid)
        finally:
            for fd in fds:
                os.close(fd)
        # Done on both sides, so that the group exists before anybody signals it.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        child = _Child(pid, os.pidfd_open(pid), request.tag, request.output)
        self._children[pid] = child
        return child

    def _reap(self, pid: int, request_id: int) -> None:
        child = self._children.get(pid)
        if child is None:
            raise ValueError(f"{pid} is not a child of the nursery")
        child.reap_id = request_id

    def _collect(self) -> None:
        """Reap those children the supervisor has asked about, and every dead orphan."""
        for child in [child for child in self._children.values() if child.reap_id is not None]:
            # Before the reaping, while the dead leader still holds the group's number.
            if not linux.is_dead(child.pidfd):
                continue
            self._named.note_group(child.pid)
            linux.signal_group(child.pidfd, child.pid, signal.SIGKILL)
            _, status = os.waitpid(child.pid, 0)
            del self._children[child.pid]
            os.close(child.pidfd)
            _limit_output(child)
            self._end_orphans()
            code = os.waitstatus_to_exitcode(status)
            self._channel.send({"id": child.reap_id, "result": {"pid": child.pid, "code": code}, "fds": 0})
        orphans = [pid for pid in linux.children() if pid not in self._children]
        if any(os.waitpid(pid, os.WNOHANG)[0] for pid in orphans):
            # Its own children have just become ours.
            self._end_orphans()

    def _end_orphans(self) -> None:
        """SIGKILL adopted processes that belong to no living child, by process group, session or environment."""
        living = self._children.keys()
        tags = {f"MLXE_ROLE={child.tag}" for child in self._children.values()}
        for pid in linux.children():
            if pid in living:
                continue
            with contextlib.suppress(OSError):
                if os.getpgid(pid) in living or os.getsid(pid) in living:
                    continue
                if tags.isdisjoint(linux.start_environment(pid)):
                    self._named.note([pid])
                    os.kill(pid, signal.SIGKILL)
        self._named.remove()

    def _limit_outputs(self) -> None:
        """Keep what children print to two files of 10 MiB each: the full one is copied aside and begun again."""
        for child in self._children.values():
            _limit_output(child)

    def _forget_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_read.recv(4096):
                pass


def _limit_output(child: _Child) -> None:
    if child.output is not None:
        with contextlib.suppress(OSError):
            _rotate(Path(child.output))


def _rotate(path: Path) -> None:
    size = path.stat().st_size
    if size <= OUTPUT_LIMIT:
        return
    with path.open("r+b") as source:
        old = os.open(f"{path}.1", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            at = size - OUTPUT_LIMIT
            while at < size and (moved := os.sendfile(old, source.fileno(), at, size - at)):
                at += moved
        finally:
            os.close(old)
        # Writers append, so they go on at the new end.
        source.truncate(0)


def _arrange(paths: list[str]) -> None:
    """Put the user's folders before installed packages, but behind Python's own library; our checkout last of all."""
    root = str(Path(__file__).parents[3])
    if not root.endswith(("site-packages", "dist-packages")):
        sys.path[:] = [*(path for path in sys.path if path != root), root]
    places = [i for i, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
    at = places[0] if places else len(sys.path)
    sys.path[at:at] = paths


def main(arguments: list[str]) -> None:
    """Body of the process; see the module's text for the arguments."""
    fd, supervisor_pid, tag, *paths = arguments
    linux.open_missing_std()
    linux.reset_signals()
    gc.disable()
    parent_pid, weakness = fork_below_guard(int(supervisor_pid), int(fd), tag)
    linux.set_process_name(PROCESS_NAME)
    with contextlib.suppress(OSError):  # told as the guard's weakness: it lacks the same
        linux.adopt_orphans()
    _arrange(paths)
    nursery = NurseryMain(ChildChannel(socket.socket(fileno=int(fd)), fds=True), parent_pid, tag)
    try:
        nursery.introduce(weakness)
        nursery.run()
    except ControlLost:
        nursery.shut_down()
    except BaseException:  # noqa: BLE001 a defect of our own must not free the children
        # Whatever ended the loop, the guardian leaves no process behind.
        traceback.print_exc()
        nursery.shut_down(birth.EXIT_FAILED)


if __name__ == "__main__":
    main(sys.argv[1:])
