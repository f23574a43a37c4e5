"""`breakpoint()` in a process of a run: a debugger on the run's terminal under `serial`, else one sentence.

Processes of a run are of a session of their own, so the terminal is opened by its path: no other process reads from it,
and with `--no-progress` none writes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from mlxe_async.ipc.shared.words import ProgressPage

TERMINAL = "MLXE_TERMINAL"
"""Variable of the environment that names the terminal of a run whose breakpoints may have it."""

_ADVICE = (
    'breakpoint(): no process of this run has a terminal, expected schedule.kind = "serial" and --no-progress '
    "in a terminal; then a debugger opens there"
)


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Stand in for `sys.breakpointhook` where there is no terminal.

    Raises:
        RuntimeError: always; it says how to have one.
    """
    raise RuntimeError(_ADVICE)


def offer(stdin: int = 0) -> None:
    """Name the terminal that a descriptor leads to, for processes that are started from now on."""
    if os.isatty(stdin):
        os.environ[TERMINAL] = os.ttyname(stdin)


def on_terminal(pages: Iterable[ProgressPage]) -> Callable[..., None]:
    """Return what `sys.breakpointhook` is to be in a process of `serial`.

    Args:
        pages: of this process; a call in which a debugger stands has no limit any more.
    """
    name = os.environ.get(TERMINAL)
    if not name:
        return refuse

    def stand(*_: Any, **__: Any) -> None:
        import pdb

        for page in pages:
            page.lift_limit()
        terminal = os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        reading, writing = os.fdopen(terminal), os.fdopen(os.dup(terminal), "w")
        debugger = pdb.Pdb(stdin=reading, stdout=writing, nosigint=True)
        debugger.set_trace(sys._getframe(1))

    return stand
