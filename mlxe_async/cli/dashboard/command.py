"""`python -m mlxe_async dashboard [FOLDER]`: a page that shows the runs of a folder while they go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.dashboard.access import Access, token_of
from mlxe_async.cli.dashboard.listening import FIRST_PORT, LOOPBACK, listen, require_library
from mlxe_async.cli.dashboard.serving import TOKEN, serve
from mlxe_async.errors import NotFound, SettingsError
from mlxe_async.storage.files import is_folder
from mlxe_async.storage.safe_text import visible

MOST_PORT = 65_535
RUNS = Path("runs")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ABOUT = f"""\
Serve a page about the runs of a folder, those that go on, have ended or died: returns, tests and losses as they come,
what each process does and waits for, policy lag, faults, the verdict on what limits the pace, the best score. It reads
the folder alone and changes nothing. Open the address that is printed: it holds a token, without which nothing is
shown. Ctrl-C ends it.

The page is served on this machine alone, and asks for nothing from elsewhere. From another machine it is read through a
tunnel: ssh -L {FIRST_PORT}:127.0.0.1:{FIRST_PORT} HOST. It needs pip install "mlxe_async[dashboard]" once."""


def run(arguments: Sequence[str]) -> int:
    """Serve until a signal comes. Returns the exit code."""
    parser = Parser(
        "dashboard [FOLDER] [--port N] [--host ADDRESS] [--token TOKEN]", ABOUT, "dashboard\ndashboard runs --port 9000"
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help="of runs, or of one run; runs/ if left out"
    )
    parser.add_argument("--port", metavar="N", help=f"which port; the first free one from {FIRST_PORT} on if left out")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        metavar="ADDRESS",
        help=f"listen there, in digits, instead of {LOOPBACK}: what is sent can then be read on the way",
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help=f"instead of one that is made; {TOKEN} in the environment keeps it from other users' eyes",
    )
    asked = parser.parse_args(arguments)
    require_library()
    folder = asked.folder or RUNS
    if asked.folder is not None and not is_folder(folder):
        raise NotFound(f"{visible(str(folder), 200)} is no folder; expected one of runs, or of one run")
    token = token_of(asked.token if asked.token is not None else os.environ.get(TOKEN))
    import uvloop

    with listen(port_of(asked.port, "--port"), asked.host) as listener:
        access = Access(asked.host, listener.getsockname()[1], token)
        sys.stdout.write(f"{access.url}/?token={token}\n")
        sys.stdout.flush()
        if not asked.host.startswith("127.") and asked.host != "::1":
            told = "other machines can reach it, and what is sent is not encrypted; ssh -L needs no --host"
            Console(sys.stderr).line(f"note: {told}")
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return 128 + runner.run(serve(listener, access, folder.absolute(), ENDING))
        except KeyboardInterrupt:  # a second one, while it ends
            return 128 + signal.SIGINT


def port_of(given: str | None, option: str) -> int | None:
    """The port that an option names; None where it was left out.

    Raises:
        SettingsError: it is none.
    """
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 5 and int(given) <= MOST_PORT):
        told = f"{option}: got {visible(given, 60)!r}, expected a port from 1 to {MOST_PORT}, or 0 for any that is free"
        raise SettingsError([told])
    return int(given)
