"""A supervised child process as the supervisor sees it: a name to call verbs on, that comes back when it dies.

Death is seen through a pidfd, never through a closed pipe alone: a grandchild that inherited the pipe would hide it.
Hanging is seen through the progress page in shared memory, never through a ping: a thread would answer it. One life of
the child (pid, pidfd, channel, epoch) is a `_Child`; nothing of a former life can be mistaken for the present one,
because each has its own socket.

The order on a death is always the same: take in what it still sent, SIGKILL what is left of its group, have it reaped,
tell the callers and the listener, decide about the restart, wait, `before_start`, fork, hand-shake.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mlxe_async.errors import MlxeError, ProcessDied, ProtocolError, RunFailed
from mlxe_async.ipc import linux
from mlxe_async.ipc.birth import cut
from mlxe_async.ipc.frames import Message
from mlxe_async.ipc.loop_channel import Ended, SupervisorChannel
from mlxe_async.ipc.nursery import ExitStatus, Forked, Nursery
from mlxe_async.ipc.restarts import HangJudge, RestartBudget, RestartPolicy

WATCH_S = 0.1
STACK_S = 0.5
FAREWELL_S = 0.5
TERMINATE_S = 0.5
KILL_S = 5.0
RECYCLE_S = 2.0


class RemoteError(MlxeError):
    """A verb raised in the child, which lives on unless `fatal`.

    Args:
        kind: name of the exception's class over there.
        message: its text.
        trace: its traceback as text.
        fatal: the child ends itself because of it.
        exit_code: of one of our own errors, else that of a failed run.
        details: the plain attributes of one of our own errors, such as `problems` or `env_index`.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        trace: str = "",
        *,
        fatal: bool = False,
        exit_code: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.trace = trace
        self.fatal = fatal
        self.details = dict(details or {})
        if exit_code is not None:
            self.exit_code = exit_code


class ProgressPage(Protocol):
    """What the supervisor needs of a progress page."""

    def overdue(self, now_ns: int) -> float | None:
        """Seconds over the limit of the present call, None when there is none."""

    def pulse(self) -> tuple[int, int]:
        """What changes as long as the worker moves; the second is 0 while it is in no call."""

    def clear(self) -> None:
        """Forget the words of a worker that is proven dead."""


class ProcessListener:
    """Told what happens to a process, from the loop's thread. Override what is of interest; must not block."""

    def started(self, process: Process, pid: int, seconds: float) -> None:
        """The hand-shake is done, `seconds` after the fork was asked for."""

    def exited(self, process: Process, sentence: str, status: ExitStatus, expected: bool) -> None:
        """The process and its group are gone."""

    def restarting(self, process: Process, delay_s: float, attempt: int) -> None:
        """It will be forked again in `delay_s`; `attempt` deaths count against its budget."""

    def hang(self, process: Process, stuck_s: float, stack: str) -> None:
        """It was killed because it was `stuck_s` over its limit; `exited` follows."""

    def notice(self, process: Process, message: Message) -> None:
        """It sent a message of its own: one with a field `notice`. A ProtocolError raised here ends the child."""


@dataclass(eq=False)
class _Child:
    """One life of a process."""

    epoch: int
    forked: Forked
    stack_fd: int
    began: float
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    "Set when it has shaken hands or is dead."
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    judge: HangJudge = field(default_factory=lambda: HangJudge(WATCH_S))
    waiting: dict[int, tuple[str, asyncio.Future[Any]]] = field(default_factory=dict)
    pulse: tuple[int, ...] = ()
    moved_ns: int = 0
    last_id: int = 0
    ready: bool = False
    bye: bool = False
    failed: RemoteError | None = None
    misdeed: str | None = None
    stuck_s: float | None = None
    doing: str | None = None
    planned: str | None = None
    "Why it is being replaced, if it is."
    status: ExitStatus | None = None
    sentence: str = ""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    channel: SupervisorChannel = field(init=False)


class Process:
    """A child process under supervision. All methods are called from the loop's thread.

    Args:
        nursery: gives the nursery it is forked from; one that died is started again on the way.
        name: process name, such as `mlxe-exe-0`.
        entry: `"package.module:function"`, which builds roles and calls `serve`.
        make_spec: epoch -> plain JSON for the entry.
        make_fds: -> descriptors for the entry by name; they stay the caller's.
        page: its progress page; None for a child that is not watched for hanging.
        policy: restarts and limits.
        listener: told what happens.
        before_start: called with the epoch when the old life is proven dead and before the fork.
        stdout_path: file for what it prints; None drops that.
        oom_score_adj: added to the kernel's inclination to end it when memory runs out.
    """

    def __init__(
        self,
        nursery: Callable[[], Nursery],
        name: str,
        entry: str,
        make_spec: Callable[[int], dict[str, Any]],
        make_fds: Callable[[], Mapping[str, int]] = dict,
        page: ProgressPage | None = None,
        policy: RestartPolicy | None = None,
        listener: ProcessListener | None = None,
        before_start: Callable[[int], None] | None = None,
        *,
        stdout_path: str | None = None,
        oom_score_adj: int = 0,
    ) -> None:
        self.name = name
        self.epoch = 0
        self.facts: dict[str, Any] = {}
        "What the child told with its hand-shake."
        self.death = ""
        "How its latest life ended, in a sentence."
        self.allowed_s = 0.0
        "The limit, in seconds, that its latest life outstayed, if one did."
        self.trace = ""
        "The traceback of the exception that ended it, if one did."
        self._nursery = nursery
        self._entry = entry
        self._make_spec = make_spec
        self._make_fds = make_fds
        self._page = page
        self._policy = policy or RestartPolicy()
        self._listener = listener or ProcessListener()
        self._before_start = before_start or (lambda _epoch: None)
        self._stdout_path = stdout_path
        self._oom_score_adj = oom_score_adj
        self._budget = RestartBudget(self._policy, name)
        self._child: _Child | None = None
        self._burial = asyncio.Lock()
        self._answerable = asyncio.Event()
        self._changed = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._final: str | None = None
        self._watchers = 0
        self._listener_error: Exception | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the present life; None before the first."""
        return self._child.forked.pid if self._child else None

    @property
    def alive(self) -> bool:
        """Whether it has shaken hands and is not dead."""
        child = self._child
        return child is not None and child.ready and child.planned is None and not child.gone.is_set()

    @property
    def is_replaced(self) -> bool:
        """Whether the present life ends, or the former one ended, because it is replaced as planned."""
        return self._child is not None and self._child.planned is not None

    @property
    def pidfd(self) -> int:
        """Descriptor of the present life, for signals; -1 when there is none."""
        return self._child.forked.pidfd if self._child else -1

    async def start(self) -> None:
        """Fork it and wait for the hand-shake; failures on the way are retried within the budget.

        Raises:
            RunFailed: the budget is used up, or the nursery's.
            RemoteError: the child reported a mistake of the user (exit code 2), which no retry mends.
        """
        with self._watching():
            await self._bring_up()

    async def run(self) -> None:
        """Watch it and start it again when it dies, until `stop`.

        Without this nobody starts it again; calls then fail as soon as it is dead.

        Raises:
            RunFailed: it died too often, or its nursery did.
            RemoteError: as for `start`.
        """
        with self._watching():
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._listener_error is not None:
                    raise self._listener_error
                child = self._child
                if self._stop_asked.is_set():
                    return
                if child is None or not child.gone.is_set():
                    continue
                await self._bury(child)
                await self._wait_before_restart(child)
                await self._bring_up()

    async def call(self, verb: str, *, role: str | None = None, **args: Any) -> Any:
        """Ask for one verb and wait for what it returns; waits for a restart that is under way.

        Args:
            verb: method of the role.
            role: which role; None when the process has only one.
            args: plain JSON.

        Raises:
            ProcessDied: the child died before it answered, or is stopped for good.
            RemoteError: the verb raised.
            ProtocolError: the arguments are not plain JSON or too large.
        """
        child = await self._ready_child()
        child.last_id += 1
        number = child.last_id
        request: Message = {"id": number, "role": role, "verb": verb, "args": args}
        if self._policy.call_limit_s is not None:
            request["limit_s"] = self._policy.call_limit_s
        child.channel.send(request)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        child.waiting[number] = (verb, future)
        try:
            return await future
        finally:
            child.waiting.pop(number, None)

    def note_progress(self) -> None:
        """Forget earlier deaths: a row was committed or a version published since."""
        self._budget.progressed()

    def recycle(self, why: str) -> None:
        """Replace it, as planned: it ends by itself and is started again; that counts as no death.

        Calls wait for the new life. To be used between two calls.

        Args:
            why: goes into the sentence that tells of its end.
        """
        child = self._child
        if child is None or not self.alive or self._stop_asked.is_set():
            return
        child.planned = why
        child.channel.send({"id": 0, "role": None, "verb": "stop", "args": {}})
        loop = asyncio.get_running_loop()
        # Before the others: the last one is the watch.
        child.timers.insert(0, loop.call_later(RECYCLE_S, child.forked.signal_group, signal.SIGKILL))

    async def stop(self, grace_s: float = 2.0) -> None:
        """Ask, terminate, kill, reap; each step bounded. May be called twice. When cancelled, kills at once."""
        self._end_for_good(f"{self.name} is stopped")
        with self._watching():
            await self._stop(grace_s)

    async def _stop(self, grace_s: float) -> None:
        child = self._child
        if child is None:
            return
        try:
            if self.alive and grace_s > 0:
                child.channel.send({"id": 0, "role": None, "verb": "stop", "args": {}})
                await _within(child.gone, grace_s)
            if not child.gone.is_set() and grace_s > 0:
                child.forked.signal_group(signal.SIGTERM)
                child.channel.close()
                await _within(child.gone, TERMINATE_S)
            if not child.gone.is_set():
                child.forked.signal_group(signal.SIGKILL)
                await _within(child.gone, KILL_S)
            if child.gone.is_set():
                await self._bury(child)
        finally:
            if child.status is None:
                self._abandon(child)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Somebody is here who buries and restarts; when the last one leaves, nobody is left waiting in vain."""
        self._watchers += 1
        try:
            yield
        except Exception as error:
            self._end_for_good(str(error))
            raise
        finally:
            self._watchers -= 1
            self._disappoint_unwatched()
            self._answerable.set()

    async def _bring_up(self) -> None:
        while not self._stop_asked.is_set():
            try:
                child = await self._spawn()
            except ProcessDied as error:
                self._child = None
                await self._spend(str(error))
                continue
            await child.settled.wait()
            if child.ready:
                return
            await self._bury(child)
            if child.failed is not None and child.failed.exit_code == 2:
                raise child.failed
            await self._wait_before_restart(child)

    async def _spawn(self) -> _Child:
        self.epoch += 1
        self._before_start(self.epoch)
        if self._page is not None:
            self._page.clear()
        began = time.monotonic()
        ours, theirs = socket.socketpair()
        stack_fd = os.memfd_create(f"{self.name}-stack", os.MFD_CLOEXEC)
        try:
            forked = await self._nursery().fork(
                self.name,
                self._entry,
                self._make_spec(self.epoch),
                {"channel": theirs.fileno(), "stack": stack_fd, **self._make_fds()},
                self._stdout_path,
                epoch=self.epoch,
                oom_score_adj=self._oom_score_adj,
            )
        except BaseException:
            ours.close()
            os.close(stack_fd)
            raise
        finally:
            theirs.close()
        child = _Child(self.epoch, forked, stack_fd, began)
        child.channel = SupervisorChannel(
            ours, functools.partial(self._heard, child), functools.partial(self._unheard, child)
        )
        loop = asyncio.get_running_loop()
        loop.add_reader(forked.pidfd, self._died, child)
        late = f"has not shaken hands for {self._policy.start_timeout_s:g} s"
        child.timers.append(loop.call_later(self._policy.start_timeout_s, self._too_late, child, late))
        child.timers.append(loop.call_later(WATCH_S, self._watch, child))
        self._child = child
        if self._stop_asked.is_set():
            # Stopped while the fork was under way: whoever stopped could not know of this life.
            self._abandon(child)
        return child

    async def _ready_child(self) -> _Child:
        while True:
            if self._final is not None:
                # A caller that tries again must not keep the loop from cancelling it.
                await asyncio.sleep(0)
                raise ProcessDied(self._final)
            if self._child is not None and self.alive:
                return self._child
            if self.epoch and not self._watchers:
                await asyncio.sleep(0)
                raise ProcessDied(f"{self.name} is dead and nobody watches it: {self.death or 'never started'}")
            self._answerable.clear()
            await self._answerable.wait()

    async def _wait_before_restart(self, child: _Child) -> None:
        # What died with the nursery is not to blame; the nursery has a budget of its own.
        if child.planned is None and (child.status is None or not child.status.with_nursery):
            await self._spend(child.sentence)
        elif not self._stop_asked.is_set():
            self._listener_told(self._listener.restarting, 0.0, self._budget.attempt)

    async def _spend(self, sentence: str) -> None:
        if self._stop_asked.is_set():
            return
        delay_s = self._budget.died(time.monotonic())
        if delay_s is None:
            policy = self._policy
            raise RunFailed(
                f"{self.name} died {self._budget.attempt} times in {policy.window_s:g} s; at last: {sentence}"
            )
        self._listener_told(self._listener.restarting, delay_s, self._budget.attempt)
        await _within(self._stop_asked, delay_s)

    def _end_for_good(self, sentence: str) -> None:
        self._final = self._final or sentence
        self._stop_asked.set()
        self._changed.set()
        self._answerable.set()

    def _heard(self, child: _Child, message: Message, _fds: list[int]) -> None:
        """Take one message from the child. Raises ProtocolError on anything unknown, which ends the child."""
        match message:
            case {"notice": _}:
                # A notice the listener refuses as a ProtocolError is the child's fault, like any other bad message.
                self._listener_told(self._listener.notice, message, refusal=ProtocolError)
            case {"id": int(number), "result": result}:
                self._settle(child, number, result, None)
            case {"id": int(number), "error": dict(error)}:
                self._settle(child, number, None, _remote_error(error))
            case {"hello": {"pid": child.forked.pid, "epoch": child.epoch, "facts": dict(facts)}} if not child.ready:
                child.ready = True
                child.timers.pop(0).cancel()
                self.facts = facts
                child.settled.set()
                self._answerable.set()
                self._listener_told(self._listener.started, child.forked.pid, time.monotonic() - child.began)
            case {"bye": _}:
                child.bye = True
            case {"failed": dict(error)}:
                child.failed = _remote_error(error)
            case _:
                raise ProtocolError(f"a message that is not expected now: {str(message)[:200]}")

    def _settle(self, child: _Child, number: int, result: Any, error: RemoteError | None) -> None:
        if not 0 < number <= child.last_id:
            raise ProtocolError(f"an answer to request {number}, which was never sent")
        verb, future = child.waiting.get(number, ("", None))
        # Nobody waits for an answer whose caller was cancelled.
        if future is None or future.done():
            return
        if error is None:
            future.set_result(result)
            return
        if error.fatal:
            child.failed = error
            child.doing = verb
        future.set_exception(error)

    def _unheard(self, child: _Child, ended: Ended, sentence: str) -> None:
        """The channel is of no use any more, although the process may be alive."""
        if ended != "ended":
            child.misdeed = sentence
        if ended == "broken":
            child.forked.signal_group(signal.SIGKILL)
        elif ended == "unresponsive":
            self._abort(child)
        else:
            # A child that has said goodbye, or lost its descriptors, is about to exit by itself.
            loop = asyncio.get_running_loop()
            child.timers.append(loop.call_later(FAREWELL_S, child.forked.signal_group, signal.SIGKILL))

    def _watch(self, child: _Child) -> None:
        overdue_s = self._overdue(child)
        scheduling = linux.scheduling(child.forked.pid) if overdue_s is not None else None
        child.stuck_s = child.judge.judge(time.monotonic_ns(), overdue_s, scheduling)
        if child.stuck_s is not None:
            self.allowed_s = self._allowed(child, child.stuck_s)
            child.doing = _doing(child)
            self._abort(child)
            return
        child.timers[-1] = asyncio.get_running_loop().call_later(WATCH_S, self._watch, child)

    def _overdue(self, child: _Child) -> float | None:
        """Seconds over the limit of the call it is in, or over the silence it may keep while it owes an answer."""
        if self._page is None:
            return None
        now_ns, pulse = time.monotonic_ns(), (*self._page.pulse(), child.last_id)
        if pulse != child.pulse or not child.waiting or pulse[1]:
            child.pulse, child.moved_ns = pulse, now_ns
        overdue_s = self._page.overdue(now_ns)
        if overdue_s is None and self._policy.silence_s is not None:
            silent_s = (now_ns - child.moved_ns) / 1e9 - self._policy.silence_s
            return silent_s if silent_s > 0 else None
        return overdue_s

    def _allowed(self, child: _Child, stuck_s: float) -> float:
        """The limit that it has outstayed by `stuck_s`."""
        since_ns = self._page.pulse()[1] if self._page is not None else 0
        return max(0.0, (time.monotonic_ns() - (since_ns or child.moved_ns)) / 1e9 - stuck_s)

    def _too_late(self, child: _Child, sentence: str) -> None:
        child.misdeed = sentence
        self._abort(child)

    def _abort(self, child: _Child) -> None:
        """Have it write its stacks and end it, whether or not it can still do the first."""
        child.forked.signal(signal.SIGABRT)
        loop = asyncio.get_running_loop()
        child.timers.append(loop.call_later(STACK_S, child.forked.signal_group, signal.SIGKILL))

    def _died(self, child: _Child) -> None:
        """The pidfd says that the process is dead. Everything that needs no waiting is done here."""
        asyncio.get_running_loop().remove_reader(child.forked.pidfd)
        child.channel.drain()
        child.channel.close()
        for timer in child.timers:
            timer.cancel()
        child.forked.signal_group(signal.SIGKILL)
        child.doing = child.doing or _doing(child)
        child.gone.set()
        child.settled.set()
        self._changed.set()
        # After a watcher that has been made but not yet had its first turn.
        asyncio.get_running_loop().call_soon(self._disappoint_unwatched)

    async def _bury(self, child: _Child) -> None:
        """Reap a dead child and tell everybody; does nothing the second time."""
        async with self._burial:
            await child.gone.wait()
            if child.status is not None:
                return
            try:
                status = await self._nursery().reap(child.forked)
            except ProcessDied:
                status = ExitStatus(None, None)
            self._conclude(child, status)

    def _abandon(self, child: _Child) -> None:
        """Kill and forget without waiting, for a caller who is being cancelled."""
        if child.status is not None:
            return
        if not child.gone.is_set():
            self._died(child)
        self._nursery().release(child.forked)
        self._conclude(child, child.forked.status or ExitStatus(None, signal.SIGKILL))

    def _conclude(self, child: _Child, status: ExitStatus) -> None:
        stack = cut(os.pread(child.stack_fd, 1 << 20, 0).decode(errors="replace"))
        os.close(child.stack_fd)
        child.forked.close()
        child.status = replace(status, pid=child.forked.pid, stack=stack)
        expected = self._stop_asked.is_set() or child.planned is not None
        child.sentence = self.death = _sentence(self.name, child, expected)
        self.trace = child.failed.trace if child.failed is not None else ""
        self._disappoint(child)
        if child.stuck_s is not None:
            self._listener_told(self._listener.hang, child.stuck_s, stack)
        self._listener_told(self._listener.exited, child.sentence, child.status, expected)

    def _disappoint(self, child: _Child) -> None:
        """Tell everybody who waits for an answer that none will come."""
        for verb, future in child.waiting.values():
            if not future.done():
                future.set_exception(
                    ProcessDied(child.sentence or f"{self.name} (pid {child.forked.pid}) died in {verb!r}")
                )

    def _disappoint_unwatched(self) -> None:
        if not self._watchers and self._child is not None and self._child.gone.is_set():
            self._disappoint(self._child)

    def _listener_told(
        self, method: Callable[..., None], *args: Any, refusal: type[Exception] | tuple[()] = ()
    ) -> None:
        """A listener that raises must not stop what is being done; the error comes out of `run`, but for a refusal."""
        try:
            method(self, *args)
        except refusal:
            raise
        except Exception as error:  # noqa: BLE001 raised again by run
            self._listener_error = self._listener_error or error
            self._changed.set()


def _doing(child: _Child) -> str | None:
    return next((verb for verb, future in child.waiting.values() if not future.done()), None)


def _sentence(name: str, child: _Child, expected: bool) -> str:
    status = child.status or ExitStatus(None, None)
    during = f" in {child.doing!r}" if child.doing else ""
    who = f"{name} (pid {child.forked.pid})"
    if child.planned is not None:
        return f"{who} is replaced: {child.planned}"
    if child.stuck_s is not None:
        text = f"{who} was {child.stuck_s:.1f} s over its limit{during} and was {status.sentence}"
    elif child.misdeed is not None:
        text = f"{who} {child.misdeed}{during} and was {status.sentence}"
    elif status.code == 0 and not child.bye and not expected:
        text = f"{who} exited with code 0{during} without being asked to"
    else:
        text = f"{who} {status.sentence}{during}"
    if child.failed is not None:
        text += f": {str(child.failed).splitlines()[0][:500]}"
    return text


def _remote_error(error: Mapping[str, Any]) -> RemoteError:
    exit_code, details = error.get("exit_code"), error.get("details")
    return RemoteError(
        str(error.get("kind", "Exception")),
        str(error.get("message", "")),
        str(error.get("trace", "")),
        fatal=error.get("fatal") is True,
        exit_code=exit_code if isinstance(exit_code, int) else None,
        details=details if isinstance(details, dict) else None,
    )


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
