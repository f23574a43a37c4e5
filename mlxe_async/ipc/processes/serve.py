"""The child's side of a supervised process: take requests, call the roles' methods, answer.

A role is a plain object; its methods are the verbs. A request names a role (it may be left out when there is only
one), a verb and its arguments; the answer is what the method returns, or what it raised, as strings. An exception
does not end the process unless it says so itself by an attribute `fatal = True`.

Requests are answered one after the other by the main thread. Roles that are named as `threaded` have a thread each, so
that they work at the same time; a role's own requests still come one after the other. The main thread alone receives,
and none of them outlives the process: what ends one thread for good ends all.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any, Protocol

from mlxe_async.errors import ProtocolError, ResourceError
from mlxe_async.ipc.messages.channel import ChildChannel, ControlLost
from mlxe_async.ipc.messages.frames import Message
from mlxe_async.ipc.processes import birth, linux
from mlxe_async.ipc.shared.hours import WAITING, WORKING

_WAIT_S = 60.0
_REARM_S = 0.1


class Hours(Protocol):
    """The record of a worker's time."""

    def switch(self, mode: int) -> int:
        """Say that it does something else from now on, and return what it did before."""


class Page(Protocol):
    """The two words of the progress page that a worker writes."""

    def enter(self, limit_s: float) -> None:
        """Say that a call begins which ends within `limit_s`."""

    def leave(self) -> None:
        """Say that it has ended."""


def serve(
    channel: ChildChannel,
    roles: Mapping[str, object],
    page: Page | None = None,
    *,
    facts: Message | None = None,
    threaded: Mapping[str, str] | None = None,
    hours: Mapping[str, Hours] | None = None,
    modes: Mapping[str, int] | None = None,
) -> None:
    """Shake hands, then answer requests until the supervisor says stop.

    Args:
        channel: as given to the entry.
        roles: name -> object. On a stop, `close()` of each that has one is called, in reverse order.
        page: entered around each request to the main thread that carries a limit; others have pages of their own.
        facts: plain JSON sent along with the hand-shake; the supervisor finds it in `Process.facts`.
        threaded: role -> name of the thread that serves it; all others are served by the main thread.
        hours: where the main thread, by the name `""`, and the other threads write how they spend their time.
        modes: what they do in a verb, in `hours.MODES`; in others they are working.

    Raises:
        ControlLost: the supervisor is gone.
    """
    hours, modes = hours or {}, modes or {}
    threaded = threaded or {}
    known = {
        name: _Thread(name, channel, roles, _Spent(hours.get(name), modes)) for name in dict.fromkeys(threaded.values())
    }
    threads = {role: known[name] for role, name in threaded.items()}
    spent = _Spent(hours.get(""), modes)
    channel.send({"hello": {"pid": os.getpid(), "epoch": channel.epoch, "facts": facts or {}}})
    armed_at = 0.0
    while True:
        request = channel.receive(_WAIT_S)
        if request is None:
            continue
        if time.monotonic() - armed_at > _REARM_S:
            # Environments set handlers, too. Not at each request: it costs as much as all the rest of one.
            linux.ignore_stop_signals()
            armed_at = time.monotonic()
        if request.get("verb") == "stop" and request.get("role") is None:
            break
        if (thread := threads.get(request.get("role") or "")) is not None:
            thread.requests.put(request)
        elif _answer(channel, roles, page, request, spent):
            os._exit(birth.EXIT_FAILED)
    for thread in known.values():
        thread.end()
    _close(roles)
    channel.send({"bye": {}})


class _Spent:
    """Writes down whether a thread waits for a request, or what it does in one."""

    def __init__(self, hours: Hours | None, modes: Mapping[str, int]) -> None:
        self._hours, self._modes = hours, modes
        self.waits()

    def waits(self) -> None:
        if self._hours is not None:
            self._hours.switch(WAITING)

    def answers(self, verb: str) -> None:
        if self._hours is not None:
            self._hours.switch(self._modes.get(verb, WORKING))


class _Thread:
    """Answers the requests to one role, beside the main thread."""

    def __init__(self, name: str, channel: ChildChannel, roles: Mapping[str, object], spent: _Spent) -> None:
        self.requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._channel, self._roles, self._spent = channel, roles, spent
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ResourceError(f"{name} cannot have a thread of its own: {linux.refusal(error)}") from error

    def end(self) -> None:
        """Wait until what is under way is done; the supervisor, who asked us to stop, bounds the time."""
        self.requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        code = birth.EXIT_FAILED
        try:
            while (request := self.requests.get()) is not None:
                if _answer(self._channel, self._roles, None, request, self._spent):
                    break
            else:
                return
        except ControlLost:
            code = birth.EXIT_CONTROL_LOST
        except BaseException:  # noqa: BLE001 - a thread that ended in silence would leave its callers waiting
            traceback.print_exc()
        os._exit(code)


def _answer(
    channel: ChildChannel, roles: Mapping[str, object], page: Page | None, request: Message, spent: _Spent
) -> bool:
    limit_s = request.get("limit_s")
    spent.answers(request["verb"])
    try:
        if page is not None and limit_s is not None:
            page.enter(limit_s)
        result = _call(roles, request)
        answer = {"id": request["id"], "result": {} if result is None else result}
    except ControlLost:
        raise
    except BaseException as error:  # noqa: BLE001 environments raise SystemExit, too
        answer = {"id": request["id"], "error": birth.describe(error)}
    finally:
        if page is not None and limit_s is not None:
            page.leave()
    try:
        channel.send(answer)
    except ProtocolError as error:
        answer = {"id": request["id"], "error": birth.describe(error)}
        channel.send(answer)
    spent.waits()
    return bool(answer.get("error", {}).get("fatal"))


def _call(roles: Mapping[str, object], request: Message) -> Any:
    name, verb, arguments = request["role"], request["verb"], request["args"]
    if name is None and len(roles) == 1:
        (role,) = roles.values()
    elif name in roles:
        role = roles[name]
    else:
        raise ProtocolError(f"no role {name!r} here, there are {sorted(roles)}")
    method = None if verb.startswith("_") else getattr(role, verb, None)
    if not callable(method):
        raise ProtocolError(f"role {type(role).__name__} has no verb {verb!r}")
    return method(**arguments)


def _close(roles: Mapping[str, object]) -> None:
    for role in reversed(list(roles.values())):
        close = getattr(role, "close", None)
        if callable(close):
            # The supervisor ends us anyway; what one role cannot close must not keep the others from closing.
            with contextlib.suppress(BaseException):
                close()
