"""One life of a supervised process, from its fork to its last word: what it owes, what it says, whether it hangs.

Nothing of a former life can be mistaken for the present one, because each has its own socket and pidfd. What becomes of
the process afterwards is not decided here but in `process`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mlxe_async.errors import ProcessDied, ProtocolError
from mlxe_async.ipc.messages.frames import Message
from mlxe_async.ipc.messages.loop_channel import Ended, SupervisorChannel
from mlxe_async.ipc.messages.remote_error import RemoteError, remote_error
from mlxe_async.ipc.processes import linux
from mlxe_async.ipc.processes.nursery import ExitStatus, Forked
from mlxe_async.ipc.processes.restarts import HangJudge, RestartPolicy, is_late
from mlxe_async.ticks import nearest_tick

WATCH_S = 0.1
FEW = 8
"""Children up to which a watch looks at all of them ten times a second."""
STACK_S = 0.5
FAREWELL_S = 0.5


@dataclass(frozen=True)
class Hang:
    """A call that outstayed its limit.

    Args:
        call: which call, one of `words.CALLS`, else the verb that was asked for; empty if unknown.
        limit_s: seconds that it was allowed.
        stuck_s: seconds by which it had outstayed them when that was judged.
    """

    call: str
    limit_s: float
    stuck_s: float


class ProgressPage(Protocol):
    """What the supervisor needs of a progress page."""

    def overdue(self, now_ns: int) -> float | None:
        """Seconds over the limit of the present call, None when there is none."""

    def pulse(self) -> tuple[int, int]:
        """Return what changes as long as the worker moves; the second is 0 while it is in no call."""

    def doing(self, now_ns: int) -> str:
        """Which call the worker is in; empty if it does not say."""

    def clear(self) -> None:
        """Forget the words of a worker that is proven dead; another one begins."""

    def end(self) -> None:
        """The worker is dead: it spends no more time. May be called twice."""


class Watch:
    """Calls all who asked for it ten times a second, in the order in which they asked; from the running loop.

    There is one for all children: a timer of its own for each would wake the loop for each. Where there are more than
    `FEW`, they are called five times a second.
    """

    def __init__(self) -> None:
        self._looks: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, look: Callable[[], None]) -> None:
        """Have `look` called from now on; it must not raise."""
        self._looks[look] = None
        if self._timer is None:
            self._wait()

    def remove(self, look: Callable[[], None]) -> None:
        """No longer. May be called twice, and by `look` itself."""
        self._looks.pop(look, None)
        if not self._looks and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        loop, apart = asyncio.get_running_loop(), WATCH_S if len(self._looks) <= FEW else 2 * WATCH_S
        self._timer = loop.call_at(nearest_tick(loop.time() + apart, apart), self._turn)

    def _turn(self) -> None:
        self._wait()
        for look in tuple(self._looks):
            look()


class Life:
    """One life of a process. Its timers and readers run on the loop it was made in.

    Args:
        name: of the process.
        epoch: which life it is, from 1.
        forked: the child.
        sock: our end of its channel; owned from now on.
        stack_fd: where it writes its stacks when it crashes; owned from now on.
        began: `time.monotonic()` when the fork was asked for.
        page: its progress page; None: it is not watched for hanging.
        policy: limits.
        watch: says when to look whether it hangs.
        ready: called with the facts of its hand-shake.
        hung: called when it is found to hang, before its stack is waited for.
        noticed: called with each message that is no answer. A ProtocolError raised here ends it.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        forked: Forked,
        sock: socket.socket,
        stack_fd: int,
        began: float,
        *,
        page: ProgressPage | None,
        policy: RestartPolicy,
        watch: Watch,
        ready: Callable[[Life, Message], None],
        hung: Callable[[Life], None],
        noticed: Callable[[Message], None],
    ) -> None:
        self.name, self.epoch, self.forked, self.began = name, epoch, forked, began
        self._stack_fd, self._page, self._policy = stack_fd, page, policy
        self._on_ready, self._on_hung, self._noticed = ready, hung, noticed
        self._loop = asyncio.get_running_loop()
        self.settled = asyncio.Event()
        "Set when it has shaken hands or is dead."
        self.gone = asyncio.Event()
        self.ready = False
        self.bye = False
        self.failed: RemoteError | None = None
        self.misdeed: str | None = None
        self.well_s: float | None = None
        "Seconds from its fork to the call that it hangs in, if it hangs; 0 if it never shook hands."
        self.hang: Hang | None = None
        "The call because of which it is ended, if it hangs."
        self.stack = ""
        "What it wrote while it crashed; known when it is dead."
        self.planned: str | None = None
        "Why it is being replaced, if it is."
        self.status: ExitStatus | None = None
        self.sentence = ""
        self._doing: str | None = None
        self._waiting: dict[int, tuple[str, asyncio.Future[Any], Callable[[Any], None]]] = {}
        self._last_id = 0
        self._judge = HangJudge(2 * WATCH_S)  # where there are many
        self._pulse: tuple[int, ...] = ()
        self._moved_ns = 0
        self._channel = SupervisorChannel(sock, self._heard, self._unheard)
        self._start_timer = self._loop.call_later(policy.start_timeout_s, self._late)
        self._start_seen = linux.scheduling(forked.pid)
        self._start_given_s = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._watch = watch
        watch.add(self._look)

    # -- what is asked of it -----------------------------------------------------------------------------------------

    async def ask(self, verb: str, role: str | None, args: dict[str, Any], check: Callable[[Any], None]) -> Any:
        """Ask for one verb and wait for what it returns; see `Process.call`."""
        self._last_id += 1
        number = self._last_id
        request: Message = {"id": number, "role": role, "verb": verb, "args": args}
        if self._policy.call_limit_s is not None:
            request["limit_s"] = self._policy.call_limit_s
        self._channel.send(request)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = (verb, future, check)
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    def ask_to_end(self) -> None:
        """Have it close its roles and exit by itself."""
        self._channel.send({"id": 0, "role": None, "verb": "stop", "args": {}})

    def kill_in(self, seconds: float) -> None:
        """SIGKILL its group then, if it is still there."""
        self._timers.append(self._loop.call_later(seconds, self.forked.signal_group, signal.SIGKILL))

    def hang_up(self) -> None:
        """Close our end of its channel."""
        self._channel.close()

    # -- what it says --------------------------------------------------------------------------------------------------

    def _heard(self, message: Message, _fds: list[int]) -> None:
        """Take one message from the child. Raises ProtocolError on anything unknown, which ends the child."""
        if "result" in message and type(message.get("id")) is int:  # nearly every message
            self._settle(message["id"], message["result"], None)
            return
        match message:
            case {"notice": _}:
                self._noticed(message)
            case {"id": int(number), "error": {"kind": str(), "message": str(), "trace": str()} as error}:
                self._settle(number, None, remote_error(error))
            case {"hello": {"pid": self.forked.pid, "epoch": self.epoch, "facts": dict(facts)}} if not self.ready:
                self.ready = True
                self._start_timer.cancel()
                self.settled.set()
                self._on_ready(self, facts)
            case {"bye": _}:
                self.bye = True
            case {"failed": dict(error)}:
                self.failed = remote_error(error)
            case _:
                raise ProtocolError(f"a message that is not expected now: {str(message)[:200]}")

    def _settle(self, number: int, result: Any, error: RemoteError | None) -> None:
        if not 0 < number <= self._last_id:
            raise ProtocolError(f"an answer to request {number}, which was never sent")
        # An answer whose caller was cancelled is not waited for.
        if number not in self._waiting or self._waiting[number][1].done():
            return
        verb, future, check = self._waiting[number]
        if error is None:
            check(result)
            future.set_result(result)
            return
        if error.fatal:
            self.failed = error
            self._doing = verb
        future.set_exception(error)

    def _unheard(self, ended: Ended, sentence: str) -> None:
        """The channel is of no use any more, although the process may be alive."""
        if ended != "ended":
            self.misdeed = sentence
        if ended == "broken":
            self.forked.signal_group(signal.SIGKILL)
        elif ended == "unresponsive":
            self._abort()
        else:
            # A child that has said goodbye, or lost its descriptors, is about to exit by itself.
            self.kill_in(FAREWELL_S)

    # -- whether it hangs ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        overdue_s = self._overdue()
        scheduling = linux.scheduling(self.forked.pid) if overdue_s is not None else None
        now_ns = time.monotonic_ns()
        stuck_s = self._judge.judge(now_ns, overdue_s, scheduling)
        if stuck_s is not None and self._page is not None:
            in_call_s = (now_ns - (self._page.pulse()[1] or self._moved_ns)) / 1e9
            self._doing = self._owed()
            call = self._page.doing(now_ns) or self._doing or ""
            self.hang = Hang(call, round(max(0.0, in_call_s - stuck_s), 2), stuck_s)
            self.well_s = time.monotonic() - self.began - in_call_s
            self._watch.remove(self._look)
            self._abort()
            self._on_hung(self)

    def _overdue(self) -> float | None:
        """Seconds over the limit of the call it is in, or over the silence it may keep while it owes an answer."""
        if self._page is None:
            return None
        now_ns, pulse = time.monotonic_ns(), (*self._page.pulse(), self._last_id)
        if pulse != self._pulse or not self._waiting or pulse[1]:
            self._pulse, self._moved_ns = pulse, now_ns
        overdue_s = self._page.overdue(now_ns)
        if overdue_s is None and self._policy.silence_s is not None:
            silent_s = (now_ns - self._moved_ns) / 1e9 - self._policy.silence_s
            return silent_s if silent_s > 0 else None
        return overdue_s

    def _late(self) -> None:
        # Its hand-shake may be waiting in the socket when it was this loop that stood still.
        self._channel.drain()
        if self.settled.is_set():
            return
        self._start_given_s += self._policy.start_timeout_s
        before, self._start_seen = self._start_seen, linux.scheduling(self.forked.pid)
        if is_late(before, self._start_seen, self._policy.start_timeout_s):
            self.misdeed = f"has not shaken hands for {self._start_given_s:g} s"
            self.well_s = 0.0
            self._abort()
        else:
            self._start_timer = self._loop.call_later(self._policy.start_timeout_s, self._late)

    def _abort(self) -> None:
        """Have it write its stacks and end it, whether or not it can still do the first."""
        self.forked.signal(signal.SIGABRT)
        self.forked.signal(signal.SIGCONT)  # who was stopped takes the signal before anything else
        self.kill_in(STACK_S)

    # -- its end -------------------------------------------------------------------------------------------------------

    def died(self) -> None:
        """The pidfd says that the process is dead. Everything that needs no waiting is done here."""
        self._channel.drain()
        self._channel.close()
        self._watch.remove(self._look)
        for timer in (self._start_timer, *self._timers):
            timer.cancel()
        self.forked.signal_group(signal.SIGKILL)
        self._doing = self._doing or self._owed()
        self.stack = os.pread(self._stack_fd, 1 << 20, 0).decode(errors="replace")
        os.close(self._stack_fd)
        self.gone.set()
        self.settled.set()

    def disappoint(self) -> None:
        """Tell everybody who waits for an answer that none will come."""
        for verb, future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(
                    ProcessDied(self.sentence or f"{self.name} (pid {self.forked.pid}) died in {verb!r}")
                )

    def describe_end(self, *, expected: bool) -> str:
        """Return how it ended, in a sentence."""
        status = self.status or ExitStatus(None, None)
        during = f" in {self._doing!r}" if self._doing else ""
        who = f"{self.name} (pid {self.forked.pid})"
        if self.planned is not None:
            return f"{who} is replaced: {self.planned}"
        if self.hang is not None:
            held = f"over its limit{during} ({self.hang.stuck_s + self.hang.limit_s:.1f} s of {self.hang.limit_s:g} s)"
            text = f"{who} was {held} and was {status.sentence}"
        elif self.misdeed is not None:
            text = f"{who} {self.misdeed}{during} and was {status.sentence}"
            if not self.ready and self.well_s is not None:
                text += self._policy.start_advice
        elif status.code == 0 and not self.bye and not expected:
            text = f"{who} exited with code 0{during} without being asked to"
        else:
            text = f"{who} {status.sentence}{during}"
        if self.failed is not None:
            text += f": {str(self.failed).splitlines()[0][:500]}"
        return text

    def _owed(self) -> str | None:
        return next((verb for verb, future, _ in self._waiting.values() if not future.done()), None)
