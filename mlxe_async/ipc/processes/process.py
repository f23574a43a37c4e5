"""A supervised child process as the supervisor sees it: a name to call verbs on, that comes back when it dies.

Death is seen through a pidfd, never through a closed pipe alone: a grandchild that inherited the pipe would hide it.
Hanging is seen through the progress page in shared memory, never through a ping: a thread would answer it. One life of
the child (pid, pidfd, channel, epoch) is a `life.Life`; here is what goes on from one life to the next.

The order on a death is always the same: take in what it still sent, SIGKILL what is left of its group, have it reaped,
tell the callers and the listener, decide about the restart, wait, `before_start`, fork, hand-shake.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mlxe_async.errors import ForkRefused, ProcessDied, ProtocolError, ResourceError, RunFailed
from mlxe_async.ipc.messages.frames import Message
from mlxe_async.ipc.processes import linux
from mlxe_async.ipc.processes.birth import cut
from mlxe_async.ipc.processes.life import Hang, Life, ProgressPage, Watch
from mlxe_async.ipc.processes.nursery import ExitStatus, Nursery
from mlxe_async.ipc.processes.restarts import RestartBudget, RestartPolicy

TERMINATE_S = 0.5
KILL_S = 5.0
REAP_S = 0.5
RECYCLE_S = 2.0


class ProcessListener:
    """Told what happens to a process, from the loop's thread. Override what is of interest; must not block."""

    def started(self, process: Process, pid: int, seconds: float) -> None:
        """The hand-shake is done, `seconds` after the fork was asked for."""

    def exited(self, process: Process, sentence: str, status: ExitStatus, expected: bool) -> None:
        """The process and its group are gone."""

    def restarting(self, process: Process, delay_s: float, attempt: int) -> None:
        """It will be forked again in `delay_s`; `attempt` deaths count against its budget."""

    def hang(self, process: Process, hang: Hang) -> None:
        """It is being ended because of a call that outstayed its limit; `hang_stack` and `exited` follow."""

    def hang_stack(self, process: Process, stack: str) -> None:
        """It is dead, and this is where it hung; not called if it could not write its stack."""

    def notice(self, process: Process, message: Message) -> None:
        """It sent a message of its own: one with a field `notice`. A ProtocolError raised here ends the child."""


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
        watch: says when to look whether it hangs, for all processes together; None: a watch of its own.
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
        watch: Watch | None = None,
        stdout_path: str | None = None,
        oom_score_adj: int = 0,
    ) -> None:
        self.name = name
        self.epoch = 0
        self.facts: dict[str, Any] = {}
        "What the child told with its hand-shake."
        self.death = ""
        "How its latest life ended, in a sentence."
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
        self._watch = watch or Watch()
        self._stdout_path = stdout_path
        self._oom_score_adj = oom_score_adj
        self._budget = RestartBudget(self._policy, name)
        self._child: Life | None = None
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
        """True if it has shaken hands and is not dead."""
        child = self._child
        return child is not None and child.ready and child.planned is None and not child.gone.is_set()

    @property
    def hang(self) -> Hang | None:
        """The call because of which the latest life was ended, if it hung."""
        return self._child.hang if self._child else None

    @property
    def stack(self) -> str:
        """The stack that the latest life left behind when it died; empty if there is none."""
        return cut(self._child.stack) if self._child else ""

    @property
    def is_replaced(self) -> bool:
        """True if the present life ends, or the former one ended, because it is replaced as planned."""
        return self._child is not None and self._child.planned is not None

    @property
    def pidfd(self) -> int:
        """Descriptor of the present life, for signals; -1 when there is none."""
        return self._child.forked.pidfd if self._child else -1

    async def start(self) -> None:
        """Fork it and wait for the hand-shake; failures on the way are retried within the budget.

        Raises:
            RunFailed: the budget is used up, or the nursery's.
            ResourceError: so it is, and at last because the host lacks something.
            RemoteError: the child reported a mistake of the user (exit code 2), which no retry mends.
        """
        with self._watching():
            await self._bring_up()

    async def run(self) -> None:
        """Watch it and start it again when it dies, until `stop`.

        Without this it is not started again; calls then fail as soon as it is dead.

        Raises:
            RunFailed: it died too often, or its nursery did.
            ResourceError: so it did, and at last because the host lacks something.
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

    async def call(
        self, verb: str, *, role: str | None = None, check: Callable[[Any], None] = lambda _answer: None, **args: Any
    ) -> Any:
        """Ask for one verb and wait for what it returns; waits for a restart that is under way.

        Args:
            verb: method of the role.
            role: which role; None when the process has only one.
            check: shown what it returns; a ProtocolError raised here ends the child, as any other bad message does.
            args: plain JSON.

        Raises:
            ProcessDied: the child died before it answered, or is stopped for good.
            RemoteError: the verb raised.
            ProtocolError: the arguments are not plain JSON or too large.
        """
        child = self._child
        if child is None or self._final is not None or not self.alive:  # seldom: nearly every call need not wait
            child = await self._ready_life()
        return await child.ask(verb, role, args, check)

    def note_progress(self) -> None:
        """Forget earlier deaths, but for hangs: a row was committed or a version published since."""
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
        child.ask_to_end()
        child.kill_in(RECYCLE_S)

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
                child.ask_to_end()
                await _within(child.gone, grace_s)
            if not child.gone.is_set() and grace_s > 0:
                child.forked.signal_group(signal.SIGTERM)
                child.hang_up()
                await _within(child.gone, TERMINATE_S)
            if not child.gone.is_set():
                child.forked.signal_group(signal.SIGKILL)
                await _within(child.gone, KILL_S)
            if child.gone.is_set():
                # It is dead; the nursery, which knows how it ended, may be busy, or have been stopped.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REAP_S):
                        await self._bury(child)
        finally:
            if child.status is None:
                self._abandon(child)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Count a task that buries and restarts this process; when the last one ends, calls that still wait fail."""
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
                await self._spend(str(error), error.exit_code)
                continue
            await child.settled.wait()
            if child.ready:
                return
            await self._bury(child)
            if child.failed is not None and child.failed.exit_code == 2:
                raise child.failed
            await self._wait_before_restart(child)

    async def _spawn(self) -> Life:
        nursery = self._nursery()
        async with nursery.turn:
            return await self._fork(nursery)

    async def _fork(self, nursery: Nursery) -> Life:
        if self._stop_asked.is_set():
            raise ProcessDied(self._final or f"{self.name} is stopped")
        self.epoch += 1
        self._before_start(self.epoch)
        if self._page is not None:
            self._page.clear()
        began = time.monotonic()
        ours, theirs, stack_fd = self._ends()
        try:
            forked = await nursery.fork(
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
        child = Life(
            self.name,
            self.epoch,
            forked,
            ours,
            stack_fd,
            began,
            page=self._page,
            policy=self._policy,
            watch=self._watch,
            ready=self._shook_hands,
            hung=self._hung,
            noticed=self._noticed,
        )
        asyncio.get_running_loop().add_reader(forked.pidfd, self._died, child)
        self._child = child
        if self._stop_asked.is_set():
            # Stopped while the fork was under way: the caller that stopped it could not know of this life.
            self._abandon(child)
        return child

    def _ends(self) -> tuple[socket.socket, socket.socket, int]:
        """Both ends of a channel and a file for stacks, and the certainty that the pidfd will find room, too.

        Raises:
            ForkRefused: this process may not open that number more.
        """
        with contextlib.ExitStack() as made:
            try:
                ours, theirs = socket.socketpair()
                made.callback(ours.close)
                made.callback(theirs.close)
                stack_fd = os.memfd_create(f"{self.name}-stack", os.MFD_CLOEXEC)
                made.callback(os.close, stack_fd)
                os.close(os.dup(stack_fd))  # what has no room when it arrives is lost, and the nursery's answer with it
            except OSError as error:
                raise ForkRefused(f"{self.name} cannot be started: {linux.refusal(error)}") from error
            made.pop_all()
        return ours, theirs, stack_fd

    async def _ready_life(self) -> Life:
        while True:
            if self._final is not None:
                # A caller that tries again must not keep the loop from cancelling it.
                await asyncio.sleep(0)
                raise ProcessDied(self._final)
            if self._child is not None and self.alive:
                return self._child
            if self.epoch and not self._watchers:
                await asyncio.sleep(0)
                raise ProcessDied(f"{self.name} is dead and no task watches it: {self.death or 'never started'}")
            self._answerable.clear()
            await self._answerable.wait()

    async def _wait_before_restart(self, child: Life) -> None:
        # What died with the nursery is not to blame; the nursery has a budget of its own.
        if child.planned is None and (child.status is None or not child.status.with_nursery):
            lacks = child.status is not None and child.status.for_memory
            failed = child.failed.exit_code if child.failed else RunFailed.exit_code
            await self._spend(child.sentence, ResourceError.exit_code if lacks else failed, child.well_s)
        elif not self._stop_asked.is_set():
            self._listener_told(self._listener.restarting, 0.0, self._budget.attempt)

    async def _spend(self, sentence: str, exit_code: int, well_s: float | None = None) -> None:
        if self._stop_asked.is_set():
            return
        delay_s = self._budget.died(time.monotonic(), well_s)
        if delay_s is None:
            if self._budget.hangs > max(1, self._policy.limit):
                raise RunFailed(
                    f"{self.name} hung in {self._budget.hangs} lives in a row, whatever it did in between, expected "
                    f"at most {self._policy.limit} (supervision.restart_limit); raise the limit that it does not keep, "
                    f"or mend what hangs; at last: {sentence}"
                )
            often = f"{self._budget.attempt} times in {self._policy.window_s:g} s"
            if exit_code == ResourceError.exit_code:
                raise ResourceError(f"{sentence} (tried {often})" if self._budget.attempt > 1 else sentence)
            raise RunFailed(f"{self.name} died {often}; at last: {sentence}")
        self._listener_told(self._listener.restarting, delay_s, self._budget.attempt)
        await _within(self._stop_asked, delay_s)

    def _end_for_good(self, sentence: str) -> None:
        self._final = self._final or sentence
        self._stop_asked.set()
        self._changed.set()
        self._answerable.set()

    def _shook_hands(self, child: Life, facts: dict[str, Any]) -> None:
        self.facts = facts
        self._answerable.set()
        self._listener_told(self._listener.started, child.forked.pid, time.monotonic() - child.began)

    def _hung(self, child: Life) -> None:
        self._listener_told(self._listener.hang, child.hang)

    def _noticed(self, message: Message) -> None:
        # A notice the listener refuses as a ProtocolError is the child's fault, like any other bad message.
        self._listener_told(self._listener.notice, message, refusal=ProtocolError)

    def _died(self, child: Life) -> None:
        """The pidfd says that the process is dead. Everything that needs no waiting is done here."""
        asyncio.get_running_loop().remove_reader(child.forked.pidfd)
        child.died()
        if self._page is not None:
            self._page.end()
        if child.hang is not None and child.stack:
            self._listener_told(self._listener.hang_stack, cut(child.stack))
        self._changed.set()
        # After a watcher that has been made but not yet had its first turn.
        asyncio.get_running_loop().call_soon(self._disappoint_unwatched)

    async def _bury(self, child: Life) -> None:
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

    def _abandon(self, child: Life) -> None:
        """Kill and forget without waiting, for a caller who is being cancelled."""
        if child.status is not None:
            return
        lost = ExitStatus(None, None)
        if not child.gone.is_set():
            lost = ExitStatus(None, signal.SIGKILL)
            self._died(child)
        self._nursery().release(child.forked)
        self._conclude(child, child.forked.status or lost)

    def _conclude(self, child: Life, status: ExitStatus) -> None:
        stack = cut(child.stack)
        child.forked.close()
        child.status = replace(status, pid=child.forked.pid, stack=stack)
        expected = self._stop_asked.is_set() or child.planned is not None
        child.sentence = self.death = child.describe_end(expected=expected)
        self.trace = child.failed.trace if child.failed is not None else ""
        child.disappoint()
        self._listener_told(self._listener.exited, child.sentence, child.status, expected)

    def _disappoint_unwatched(self) -> None:
        if not self._watchers and self._child is not None and self._child.gone.is_set():
            self._child.disappoint()

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


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
