"""What a forked child does between the fork and its entry function, and how it ends.

The child is a copy of the nursery, so everything that must not be shared is undone here, in an order in which a
failure at any point still ends in a dead child and a known status.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mlxe_async.errors import MlxeError, raised_at
from mlxe_async.ipc.messages.channel import ChildChannel, ControlLost
from mlxe_async.ipc.processes import breakpoints, linux

TEXT_LIMIT = 16 * 1024
EXIT_FAILED = 70
EXIT_CONTROL_LOST = 71

Entry = Callable[[dict[str, Any], ChildChannel, dict[str, int]], None]


@dataclass(frozen=True)
class Birth:
    """A request to fork a child.

    Args:
        name: the process name, such as `mlxe-exe-0`.
        entry: `"package.module:function"`, called as `entry(spec, channel, fds)`.
        spec: plain JSON handed to the entry.
        epoch: how often the supervisor has started this child, from 1.
        fds: descriptors by name; `channel` and `stack` are taken by the birth itself, the others reach the entry.
        output: file for stdout and stderr, or None for none at all.
        oom_score_adj: added to the kernel's inclination to end this process when memory runs out.
        tag: value of MLXE_ROLE in the child's environment, by which its orphans are recognised.
    """

    name: str
    entry: str
    spec: dict[str, Any]
    epoch: int
    fds: Mapping[str, int]
    output: str | None
    oom_score_adj: int
    tag: str


def live(birth: Birth, nursery_pid: int) -> NoReturn:
    """Become the child, run its entry and end the process. Never returns and never raises."""
    code = EXIT_FAILED
    try:
        code = _live(birth, nursery_pid)
    except BaseException:  # noqa: BLE001 nothing may climb back into the nursery's loop
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        # Not sys.exit: threads and exit hooks of foreign packages may never end.
        os._exit(code)


def _live(birth: Birth, nursery_pid: int) -> int:
    os.setpgid(0, 0)
    linux.die_with_parent()
    if os.getppid() != nursery_pid:
        return EXIT_CONTROL_LOST
    linux.reset_signals()
    linux.set_process_name(birth.name)
    _redirect(birth.output)
    linux.close_all_except(birth.fds.values())
    faulthandler.enable(file=birth.fds["stack"], all_threads=True)
    if birth.oom_score_adj:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(birth.oom_score_adj))
    os.environ["MLXE_ROLE"] = birth.tag
    sys.breakpointhook = breakpoints.refuse
    gc.enable()
    channel = ChildChannel(socket.socket(fileno=birth.fds["channel"]), birth.epoch)
    os.register_at_fork(after_in_child=lambda: _be_nobody(channel))
    fds = {name: fd for name, fd in birth.fds.items() if name not in ("channel", "stack")}
    try:
        find_entry(birth.entry)(birth.spec, channel, fds)
    except ControlLost:
        return EXIT_CONTROL_LOST
    except BaseException as error:  # noqa: BLE001 also SystemExit and KeyboardInterrupt from foreign code
        traceback.print_exc()
        channel.send({"failed": describe(error)})
        return EXIT_FAILED
    return 0


def _be_nobody(channel: ChildChannel) -> None:
    """A child that an environment forked is not this role, even where it comes back from the environment's code."""
    linux.default_stop_signals()
    faulthandler.disable()  # the stack that would be written is told as ours
    channel.close()


def _redirect(output: str | None) -> None:
    if output is None:
        linux.redirect_std()
    else:
        # Without waiting for a reader, should it be a FIFO; of no effect on a file.
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        linux.redirect_std(fd)
        if fd > 2:
            os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        # An embedding package may have put anything in their place.
        with contextlib.suppress(Exception):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr] # see above


def prepared(entry: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The specification as the module of the entry prepares it in the nursery, whose memory all children share.

    Such a module may have `before_fork(spec)`, which returns what the entry gets. One that is not imported yet, or
    could not be, is left to the child.
    """
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None
    prepare = getattr(sys.modules.get(entry.partition(":")[0]), "before_fork", None)
    return spec if prepare is None else prepare(spec)


def find_entry(text: str) -> Entry:
    """The function behind `"package.module:function"`.

    Raises:
        ImportError: the module cannot be imported or has no such function.
    """
    module_name, _, function_name = text.partition(":")
    try:
        function: Entry = getattr(importlib.import_module(module_name), function_name)
    except AttributeError:
        raise ImportError(f"entry {text!r}: module {module_name} has no {function_name!r}") from None
    return function


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as strings and numbers. Guarded: foreign exceptions raise when they are shown, or weigh megabytes.

    Returns:
        `kind` class name, `message`, `trace`, `place` (file and line, of foreign ones), `fatal` (its own attribute of
        that name), and for our own errors `exit_code` and `details`, their attributes as far as they are plain JSON.
    """
    described = {
        "kind": type(error).__name__[:200],
        "message": _guarded(lambda: str(error)) or _guarded(lambda: repr(error)),
        "trace": _guarded(lambda: "".join(traceback.format_exception(error, limit=50))),
        "place": "" if isinstance(error, MlxeError) else _guarded(lambda: raised_at(error, anywhere=True)),
        "fatal": _guarded(lambda: str(bool(getattr(error, "fatal", False)))) == "True",
        "exit_code": None,
        "details": {},
    }
    if isinstance(error, MlxeError):
        described["exit_code"] = error.exit_code
        described["details"] = {key: value for key, value in vars(error).items() if _is_plain(value)}
    return described


def _guarded(show: Callable[[], str]) -> str:
    try:
        text = show()
    except BaseException as error:  # noqa: BLE001 whatever a foreign __str__ raises
        return f"<cannot be shown: {type(error).__name__}>"
    return cut(text)


def cut(text: str) -> str:
    """At most 16 KiB of `text`, beginning and end kept."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_LIMIT
    if isinstance(value, list):
        return len(value) <= 100 and all(isinstance(item, str | int) and _is_plain(item) for item in value)
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    return value is None or isinstance(value, bool | int)
