"""`python -m mlxe_async follow RUN [--json | --lines] [--level LEVEL]`: a run as it goes on, until it ends.

On a terminal it looks as it does where it was started; elsewhere every event is a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from mlxe_async.cli.arguments import RUN, Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.telling import told
from mlxe_async.logs.levels import LEVELS, is_at_least
from mlxe_async.logs.reader import follow

BREATH = 500  # events between two chances for the display: a long log is read faster than it was written


def run(arguments: Sequence[str]) -> int:
    """Show the run, or print one line per event on stdout: for people, or with `--json` for programs."""
    parser = Parser(
        "follow RUN [--dir FOLDER] [--json | --lines] [--level LEVEL]",
        "Show a run while it goes on, as its own terminal does; piped, print a line for each event, from the first to "
        "the last.",
        "follow latest\nfollow latest --level warning\nfollow latest --json | grep episode_end",
    )
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_dir()
    parser.add_argument("--json", action="store_true", help="events as they stand in the log, for programs")
    parser.add_argument("--lines", action="store_true", help="events in words, on a terminal too")
    levels = ", ".join(LEVELS)
    parser.add_argument("--level", choices=LEVELS, metavar="LEVEL", help=f"events of this level or above: {levels}")
    asked = parser.parse_args(arguments)
    console = Console(sys.stderr)
    is_shown = console.is_terminal and sys.stdout.isatty() and not (asked.json or asked.lines or asked.level)
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                _show(asked.run, console)
                if is_shown
                else _print(asked.run, asked.level or LEVELS[0], as_json=asked.json)
            )
    except KeyboardInterrupt:
        return 130
    return 0


async def _print(run: str, level: str, *, as_json: bool) -> None:
    async for event in follow(run):
        if not is_at_least(event, level):
            continue
        sys.stdout.write((json.dumps(event) if as_json else told(event)) + "\n")
        sys.stdout.flush()


async def _show(run: str, console: Console) -> None:
    from mlxe_async.cli.view.display import Display

    display = Display(console, tells=False)
    display.start()
    try:
        count = 0
        async for event in follow(run):
            display.feed(event)
            count += 1
            if count % BREATH == 0:
                await asyncio.sleep(0)
        display.picture.is_lost = not display.picture.ending
    finally:
        display.stop()
