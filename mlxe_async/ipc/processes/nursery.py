"""The supervisor's handle on the nursery, the process from which all children are forked.

The supervisor itself never forks: it may be a user's notebook with threads, locks and a GPU in it. It starts the
nursery by exec as early as possible; the nursery imports what is slow while the supervisor does other things, and
requests queue behind that. When the nursery dies, its children die with it by the kernel's parent-death signal; the
first one who needs it again starts a fresh one, and all others wait for the same start.

What is exec'd is the guard (`guard`), which forks the nursery at once and ends as it did when all below is ended.
A nursery's life lasts as long as its guard's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxe_async import waits
from mlxe_async.errors import ForkRefused, OutOfMemory, ProcessDied, ProtocolError, ResourceError, RunFailed
from mlxe_async.ipc.messages.channel import MAX_FDS
from mlxe_async.ipc.messages.frames import Message
from mlxe_async.ipc.messages.loop_channel import Ended, SupervisorChannel
from mlxe_async.ipc.processes import linux
from mlxe_async.ipc.processes.guard import SWEEP_LIMIT_S
from mlxe_async.ipc.processes.limits import OomKills
from mlxe_async.ipc.processes.named_memory import NamedMemory
from mlxe_async.ipc.processes.restarts import is_late

_THREAD_POOLS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "BLIS")
ONE_THREAD = {f"{pool}_NUM_THREADS": "1" for pool in _THREAD_POOLS}
IMPORT_LIMIT_S = 120.0  # to answer while modules are imported, and otherwise:
ANSWER_LIMIT_S = 10.0
GRACE_S = 0.5  # to read what came while we ourselves stood still
STOP_LIMIT_S = 2.0
REAP_AFTER_S = 1.0
PROGRAM = ("-m", "mlxe_async.ipc.processes.nursery_main")
GUARD_LIMIT_S = SWEEP_LIMIT_S + 1.0
"For a guard to end after its nursery's death."


_Answer = tuple[Message, list[int]]


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended.

    Args:
        code: exit code; None when a signal ended it or it is unknown.
        signal: signal number; None when it exited by itself.
        with_nursery: it was taken along by the death of the nursery.
        stack: what faulthandler wrote while it died; often empty.
        pid: its process id; 0 when that is told elsewhere.
        for_memory: the kernel has just killed a process because memory ran out, and this process was killed.
    """

    code: int | None
    signal: int | None
    with_nursery: bool = False
    stack: str = ""
    pid: int = 0
    for_memory: bool = False

    @property
    def signal_name(self) -> str | None:
        """Such as `"SIGKILL"`; None when no signal ended it."""
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"

    @property
    def sentence(self) -> str:
        """Such as `"killed by signal 9 (SIGKILL)"`."""
        if self.with_nursery:
            return "killed with the nursery it was forked from"
        if self.signal is not None:
            why = ", by the kernel for lack of memory" if self.for_memory else ""
            return f"killed by signal {self.signal} ({self.signal_name}){why}"
        if self.code is None:
            return "ended in an unknown way"
        return f"exited with code {self.code}"


@dataclass(eq=False)
class Forked:
    """A living or dead child of the nursery; `close()` gives its descriptor back."""

    pid: int
    pidfd: int
    generation: int
    _forget: Callable[[Forked], None] = field(repr=False)
    _named: NamedMemory = field(repr=False)
    status: ExitStatus | None = None
    "Known once it is reaped."

    def signal(self, number: int) -> None:
        """Signal the process itself."""
        if self.pidfd >= 0:
            linux.signal_process(self.pidfd, number)

    def signal_group(self, number: int) -> None:
        """Signal the process and everything in its group; also reaches those who survived it."""
        if self.pidfd >= 0:
            if number == signal.SIGKILL:
                self._named.note_group(self.pid)
            linux.signal_group(self.pidfd, self.pid, number)

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
            self._forget(self)


@dataclass
class _Life:
    """One nursery process, from exec to reaping.

    Args:
        guard: the process that was exec'd, of which the nursery is a child; it ends after it.
        guard_pidfd: descriptor of the guard.
        pid: of the nursery; the guard's until the nursery has told its own.
        pidfd: descriptor of the nursery; -1 until then.
    """

    generation: int
    guard: subprocess.Popen[bytes]
    guard_pidfd: int
    pid: int
    tag: str
    errors: int
    died: asyncio.Future[str]
    pidfd: int = -1
    began: float = field(default_factory=time.monotonic)
    ending: asyncio.TimerHandle | None = None
    has_forked: bool = False
    waiting: dict[int, asyncio.Future[_Answer]] = field(default_factory=dict)
    importing: set[int] = field(default_factory=set)
    reaping: dict[int, Forked] = field(default_factory=dict)
    channel: SupervisorChannel = field(init=False)


class Nursery:
    """Forks children on request. All methods are called from the thread of one running loop.

    Args:
        on_started: called with (pid, seconds until it first answered, generation) of each nursery process.
        on_exited: called with (pid, sentence, expected).
        restart_limit: restarts allowed within `restart_window_s`; one death more is final.
        restart_window_s: deaths older than this many seconds are forgotten.
    """

    def __init__(
        self,
        *,
        on_started: Callable[[int, float, int], None] | None = None,
        on_exited: Callable[[int, str, bool], None] | None = None,
        restart_limit: int = 5,
        restart_window_s: float = 60.0,
    ) -> None:
        self._restart_limit, self._restart_window_s = restart_limit, restart_window_s
        self._on_started = on_started or (lambda *_: None)
        self._on_exited = on_exited or (lambda *_: None)
        self._life: _Life | None = None
        self._modules: list[str] = []
        self._paths: list[str] = []
        self._env: dict[str, str] = {}
        self._forked: set[Forked] = set()
        self._named = NamedMemory()
        self._oom_kills = OomKills()
        self._next_id = 0
        self._deaths: list[float] = []
        self._stopped = self._lacks_memory = False
        self.turn = asyncio.Lock()
        "Held from making the descriptors of a child to its fork: those that queue would hold theirs for minutes."
        self.generation = 0
        self.handed: dict[str, int] = {}
        "Descriptors that each child gets besides its own, by name."
        self.failures: dict[str, dict[str, Any]] = {}
        "Modules that could not be preloaded, with the described exception."
        self.weakness = ""
        "What the guard cannot do on this host, in words; known once the nursery has answered anything."

    @property
    def pid(self) -> int | None:
        """Process id; the guard's as long as the nursery has not told its own, None while there is none."""
        return self._life.pid if self._life else None

    @property
    def guard_pid(self) -> int | None:
        """Process id of the guard; None while there is none."""
        return self._life.guard.pid if self._life else None

    @property
    def died(self) -> asyncio.Future[str]:
        """Set with a sentence when the present nursery process is dead."""
        if self._life is None:
            raise ProcessDied("the nursery is not running")
        return self._life.died

    async def start(
        self,
        preload: Sequence[str] = (),
        python_path: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process. Returns at once: preloading goes on in it, and requests queue behind.

        Args:
            preload: modules to import, in this order. One that cannot be imported is noted in `failures`.
            python_path: the user's folders, found before installed packages but behind Python's own library.
            env: environment variables on top of ours and of the pinned thread counts.

        Raises:
            ResourceError: the kernel makes no more processes.
            RunFailed: the process cannot be started for another reason.
        """
        self._modules = list(preload)
        self._paths = _absolute(python_path)
        self._env = dict(env or {})
        self._stopped = False
        self._exec()

    async def preload(self, modules: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Import more modules, and again after each restart. Returns the failures, module -> described exception."""
        self._modules += [module for module in modules if module not in self._modules]
        answer, _ = await self._ask({"do": "preload", "modules": list(modules)})
        self.failures |= answer["failures"]
        return dict(answer["failures"])

    async def fork(
        self,
        name: str,
        entry: str,
        spec: dict[str, Any],
        fds: Mapping[str, int],
        stdout_path: str | None = None,
        *,
        epoch: int = 1,
        oom_score_adj: int = 0,
    ) -> Forked:
        """Fork a child; see `birth.Birth` for the arguments. `fds` stay the caller's and may be closed afterwards.

        A dead nursery is started again first. When the caller is cancelled, the child is ended as soon as it is known.

        Raises:
            ProcessDied: the nursery died before it answered, or refused.
            ForkRefused: the kernel makes no more processes at present, or this one may open no more files.
            RunFailed: the nursery has died too often.
            ResourceError: it has, at last for lack of memory.
        """
        fds = {**self.handed, **fds}
        request = {
            "do": "fork",
            "name": name,
            "entry": entry,
            "spec": spec,
            "epoch": epoch,
            "fd_names": list(fds),
            "output": stdout_path,
            "oom_score_adj": oom_score_adj,
        }
        self._revive()
        generation = self.generation
        try:
            answer, (pidfd,) = await self._ask(request, list(fds.values()))
        except OSError as error:
            raise ForkRefused(f"{name} cannot be started: {linux.refusal(error)}") from error
        handle = Forked(answer["pid"], pidfd, generation, self._forked.discard, self._named)
        self._forked.add(handle)
        return handle

    async def reap(self, child: Forked) -> ExitStatus:
        """Wait until `child` and its group are dead and its entry in the process table is gone.

        Raises:
            ProcessDied: the nursery does not answer.
        """
        life = self._life
        lost = ExitStatus(None, signal.SIGKILL, with_nursery=True)
        if life is None or life.generation != child.generation:
            return child.status or lost
        life.reaping[child.pid] = child
        try:
            await self._ask({"do": "reap", "pid": child.pid})
        except ProcessDied:
            # An earlier caller, cancelled meanwhile, may have asked already.
            if child.status is None and not life.died.done():
                raise
        self._named.remove()
        return child.status or lost

    def release(self, child: Forked) -> None:
        """Kill a child's group and have it reaped without waiting for it, for a caller who is being cancelled."""
        child.signal_group(signal.SIGKILL)
        if self._life is not None and self._life.generation == child.generation and child.status is None:
            self._life.channel.send({"id": 0, "do": "reap", "pid": child.pid})
        child.close()

    def wake(self) -> None:
        """Let it go on if it was stopped: the end of its children needs it."""
        if self._life is not None:
            linux.signal_process(self._life.guard_pidfd, signal.SIGCONT)
            if self._life.pidfd >= 0:
                linux.signal_process(self._life.pidfd, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL every child's group and let the nursery end; takes effect even if nothing is awaited any more."""
        for child in list(self._forked):
            child.signal_group(signal.SIGKILL)
        if self._life is not None:
            self._life.channel.close()

    async def stop(self) -> None:
        """End the nursery and everything below it. May be called twice, and by a cancelled task."""
        self._stopped = True
        life = self._life
        if life is None:
            return
        self.wake()
        self.kill()
        if not life.has_forked or life.importing:
            # It need not finish what it is importing; what its children had started is found by its tag.
            self._silenced(life)
        try:
            await asyncio.wait([life.died], timeout=STOP_LIMIT_S)
        finally:
            if not life.died.done():
                self._silenced(life)
                linux.signal_process(life.guard_pidfd, signal.SIGKILL)
                self._bury(life)
            self._named.remove()

    def _revive(self) -> None:
        if self._stopped:
            raise ProcessDied("the nursery is stopped")
        if self._life is None:
            self._deaths = [t for t in self._deaths if t > time.monotonic() - self._restart_window_s]
            if len(self._deaths) > self._restart_limit:
                often = f"the nursery died {len(self._deaths)} times in {self._restart_window_s:g} s"
                if self._lacks_memory:
                    raise ResourceError(f"{often}, at last killed by the kernel for lack of memory")
                raise RunFailed(often)
            self._exec()

    def _exec(self) -> None:
        self.generation += 1
        tag = secrets.token_hex(8)
        sentence = "the nursery cannot be started"
        with contextlib.ExitStack() as made:
            try:
                ours, theirs = socket.socketpair()
                made.callback(ours.close)
                with theirs:  # whose place the pidfd takes, so that what was started can be watched
                    errors = os.memfd_create("mlxe-nursery-errors", os.MFD_CLOEXEC)
                    made.callback(os.close, errors)
                    arguments = [str(theirs.fileno()), str(os.getpid()), tag, *self._paths]
                    env = {**ONE_THREAD, **waits.variables(os.environ), **self._env, "MLXE_NURSERY": tag}
                    os.close(os.dup(errors))  # the nursery's pidfd comes later, and is lost without room for it
                    guard = _popen(arguments, theirs.fileno(), errors, env)
                guard_pidfd = os.pidfd_open(guard.pid)
            except OSError as error:
                if error.errno in linux.LACKING:
                    raise ResourceError(f"{sentence}: {linux.refusal(error)}") from error
                raise RunFailed(f"{sentence}: {error}") from error
            made.pop_all()
        loop = asyncio.get_running_loop()
        life = _Life(self.generation, guard, guard_pidfd, guard.pid, tag, errors, loop.create_future())
        life.channel = SupervisorChannel(
            ours,
            lambda message, fds: self._answered(life, message, fds),
            lambda ended, _sentence: self._unheard(life, ended),
            fds=True,
        )
        self._life = life
        loop.add_reader(life.guard_pidfd, self._bury, life)
        first = self._send(life, {"do": "preload", "modules": self._modules})
        first.add_done_callback(lambda future: self._preloaded(life, future))

    def _preloaded(self, life: _Life, future: asyncio.Future[_Answer]) -> None:
        if future.exception() is None:
            self.failures = dict(future.result()[0]["failures"])
            self._on_started(life.pid, time.monotonic() - life.began, life.generation)

    async def _ask(self, request: Message, fds: Sequence[int] = ()) -> _Answer:
        life = self._life
        if life is None:
            raise ProcessDied("the nursery is not running")
        future = self._send(life, request, fds)
        try:
            waited_s = await self._wait(life, future)
        except asyncio.CancelledError:
            # What was asked for may come to life all the same; then it must not be forgotten.
            if not future.done():
                future.cancel()
            elif future.exception() is None:
                self._discard(life, *future.result())
            raise
        if not future.done():
            future.cancel()  # no process is left to say how it died
            self._silenced(life)
            raise ProcessDied(f"the nursery has not answered for {waited_s:g} s")
        return future.result()

    async def _wait(self, life: _Life, future: asyncio.Future[_Answer]) -> float:
        """Wait for an answer for as long as the nursery may take, longer while it gets no core; returns the seconds."""
        given_s = 0.0
        while True:
            limit_s = IMPORT_LIMIT_S if life.importing else ANSWER_LIMIT_S
            pid = life.pid
            before = linux.scheduling(pid)
            for seconds in (limit_s, GRACE_S):
                if not future.done():
                    await asyncio.wait([future], timeout=seconds)
            given_s += limit_s
            if future.done():
                return given_s
            if pid == life.pid and is_late(before, linux.scheduling(pid), limit_s + GRACE_S):
                return given_s

    def _send(self, life: _Life, request: Message, fds: Sequence[int] = ()) -> asyncio.Future[_Answer]:
        self._next_id += 1
        life.has_forked |= request["do"] == "fork"
        if request["do"] == "preload":
            life.importing.add(self._next_id)
        ahead = 0
        try:
            # No single message takes more; they wait there until the request takes them all.
            while len(fds) - ahead > MAX_FDS:
                life.channel.send({"id": 0, "do": "hold"}, fds[ahead : ahead + MAX_FDS])
                ahead += MAX_FDS
            life.channel.send({"id": self._next_id, **request}, fds[ahead:])
        except (OSError, ProtocolError):
            life.channel.send({"id": 0, "do": "drop", "count": ahead})
            raise
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        life.waiting[self._next_id] = future
        return future

    def _answered(self, life: _Life, message: Message, fds: list[int]) -> None:
        if "hello" in message:
            self._introduced(life, message["hello"], fds)
            return
        future = life.waiting.pop(message.get("id", -1), None)
        life.importing.discard(message.get("id", -1))
        error = message.get("error")
        result = message.get("result", {})
        if "code" in result and result["pid"] in life.reaping:
            life.reaping.pop(result["pid"]).status = self._status(result["code"])
        if future is None or future.cancelled():
            self._discard(life, result, fds)
        elif error is not None and error["exit_code"] == ResourceError.exit_code:
            future.set_exception(ForkRefused(error["message"]))
        elif error is not None:
            future.set_exception(ProcessDied(f"the nursery refused: {error['kind']}: {error['message']}"))
        else:
            future.set_result((result, fds))

    def _introduced(self, life: _Life, hello: Message, fds: list[int]) -> None:
        life.pid, self.weakness = hello["pid"], hello["weakness"]
        (life.pidfd,) = fds
        asyncio.get_running_loop().add_reader(life.pidfd, self._lost, life)

    def _lost(self, life: _Life) -> None:
        """The nursery is dead; its guard ends when everything below is."""
        if life.died.done():
            return
        asyncio.get_running_loop().remove_reader(life.pidfd)
        self._let_guard_end(life)

    def _let_guard_end(self, life: _Life) -> None:
        linux.signal_process(life.guard_pidfd, signal.SIGCONT)  # it may have been stopped
        if life.ending is None:
            loop = asyncio.get_running_loop()
            life.ending = loop.call_later(GUARD_LIMIT_S, linux.signal_process, life.guard_pidfd, signal.SIGKILL)

    def _discard(self, life: _Life, result: Message, fds: list[int]) -> None:
        """End a child that was forked for a caller that no longer waits for it."""
        for pidfd in fds:
            linux.signal_group(pidfd, result["pid"], signal.SIGKILL)
            os.close(pidfd)
            life.channel.send({"id": 0, "do": "reap", "pid": result["pid"]})

    def _status(self, code: int) -> ExitStatus:
        if code >= 0:
            return ExitStatus(code, None)
        return ExitStatus(None, -code, for_memory=code == -signal.SIGKILL and self._oom_kills.one_just_now())

    def _unheard(self, life: _Life, ended: Ended) -> None:
        if ended == "ended" and life.pidfd < 0:
            self._let_guard_end(life)  # it is about to tell how the nursery ended
        else:
            self._silenced(life)

    def _silenced(self, life: _Life) -> None:
        # Before the nursery has told its number it has no child, and its guard's death ends it.
        linux.signal_process(life.guard_pidfd if life.pidfd < 0 else life.pidfd, signal.SIGKILL)

    def _bury(self, life: _Life) -> None:
        """Runs once per nursery process, when its guard's death is certain."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(life.guard_pidfd)
        if life.ending is not None:
            life.ending.cancel()
        life.channel.close()
        for child in list(self._forked):
            if child.generation == life.generation:
                child.signal_group(signal.SIGKILL)
        code = life.guard.wait()
        who = f"the nursery (pid {life.pid})"
        if life.pidfd >= 0:
            if not linux.is_dead(life.pidfd):
                who = f"the guard (pid {life.guard.pid}) of the nursery"
            loop.remove_reader(life.pidfd)
            os.close(life.pidfd)
        if code != 0:
            # If it was the guard that was killed, what had gone into sessions of its own is found by its environment.
            linux.kill_tagged(f"MLXE_NURSERY={life.tag}")
            if os.getpid() == 1:
                # In a container no other process inherits them.
                loop.call_later(REAP_AFTER_S, linux.reap_session, life.guard.pid)
        if not self._stopped:
            self._deaths.append(time.monotonic())
        status = self._status(code)
        errors = os.pread(life.errors, 1 << 16, 0).decode(errors="replace").strip()
        sentence = f"{who} {status.sentence}"
        if errors:
            sentence += f": {errors.splitlines()[-1]}"
        os.close(life.errors)
        os.close(life.guard_pidfd)
        if self._life is life:
            self._life = None
        for future in life.waiting.values():
            if not future.done():
                future.set_exception(OutOfMemory(sentence) if status.for_memory else ProcessDied(sentence))
        self._lacks_memory = status.for_memory
        life.died.set_result(sentence)
        self._on_exited(life.pid, sentence, self._stopped)


def _absolute(paths: Sequence[str]) -> list[str]:
    return [str(Path(path).absolute()) for path in paths]


def _popen(arguments: list[str], fd: int, errors: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", *PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": module_path(), **env},
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )


def module_path() -> str:
    """Return PYTHONPATH for a process that is exec'd: it finds this package as this process has found it."""
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # A checkout that is not installed is found all the same; `main` moves it behind everything else.
    return os.pathsep.join([*path, str(Path(__file__).parents[3])])
