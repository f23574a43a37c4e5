"""`tune FILE|RUN`: measure short runs with changes that the verdict predicts to help, and write what was fastest."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxe_async.analysis.tuning import Measured, Search, in_words, told
from mlxe_async.cli.arguments import RUN, Parser
from mlxe_async.cli.console import Console
from mlxe_async.cli.measuring import WINDOW_S, ShortRun, knobs_of, measured, settings_with
from mlxe_async.cli.rewriting import commented, rewritten
from mlxe_async.cores import usable_cores
from mlxe_async.errors import MlxeError, ResourceError, SettingsError
from mlxe_async.settings import Settings, load_settings
from mlxe_async.settings.trust import settings_of_run
from mlxe_async.storage.files import replace_file
from mlxe_async.storage.run_folder import SETTINGS, find_run
from mlxe_async.storage.safe_text import visible

BUDGET_S = 150.0
RESERVE_S = 40.0
"""Seconds at the end, at most, for those that run again."""
REPEATS = 3
"""Runs of settings that are close to the fastest."""
ABOUT = """\
Run FILE.toml, or the settings of a RUN, for a few seconds, again and again, with the changes that the verdict predicts
to help and with their neighbours, and write the fastest settings into a file: the same, with changed values, and what
was measured as comments.

Only changes are tried that leave what is learned as it is: the same number of environments among more or fewer
executors, schedules that repeat themselves, the place of the memory, threads of the learner. With --any also others,
such as schedule.kind = "oa" or longer rollouts; the file then says which of them is in it.

Ctrl-C ends it with the best so far. Nothing of the measured runs is kept."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Asked:
    """The arguments.

    Args:
        file: the settings.
        overrides: of keys.
        out: the file to write.
        seconds: the whole time, about.
        any: also try what changes what is learned.
    """

    file: str
    overrides: tuple[str, ...]
    out: Path
    seconds: float
    any: bool


def run(arguments: Sequence[str]) -> int:
    """Measure, and write a settings file. Returns the exit code."""
    asked = _asked(arguments)
    settings = load_settings(asked.file, asked.overrides)
    if settings.run.record or settings.run.init_from:
        key = "run.record" if settings.run.record else "run.init_from"
        raise SettingsError(
            [f"tune: {key} is set, expected settings of a run that begins anew: --set {key}=... or drop it"]
        )
    from mlxe_async.cli.limits import require_address_space

    require_address_space()
    import uvloop

    console = Console(sys.stderr)
    tuning = _Tuning(asked, settings, console)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(tuning.until_signal())
    return tuning.finish(code)


def _asked(arguments: Sequence[str]) -> Asked:
    parser = Parser(
        "tune FILE.toml|RUN [--set a.b=VALUE ...] [--any] [--seconds S] [--out FILE.toml] [--trust MODULE|FOLDER]",
        ABOUT,
        "tune settings/ppo-cartpole.toml\ntune mine.toml --any --seconds 300 --out faster.toml\ntune latest",
    )
    parser.add_argument("file", metavar="FILE.toml|RUN", help=f"the settings to begin with, or the {RUN}")
    parser.add_trust()
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="a.b=VALUE", help="override a key"
    )
    parser.add_argument("--any", action="store_true", help="also try changes of what is learned from")
    parser.add_argument("--seconds", type=float, default=BUDGET_S, metavar="S", help="about so long; 150 when left out")
    parser.add_argument("--out", type=Path, metavar="FILE.toml", help="where; FILE-tuned.toml when left out")
    asked = parser.parse_args(arguments)
    if not 10 <= asked.seconds <= 86_400:
        parser.error(f"--seconds: got {asked.seconds:g}, expected from 10 to 86400")
    file, stem = asked.file, Path(asked.file).stem
    if not file.endswith(".toml"):
        file, stem, asked.overrides = _of_run(file, asked.overrides, asked.trust)
    elif asked.trust:
        parser.error("--trust: got FILE.toml too, expected a RUN alone; code that your own file names runs anyway")
    out = asked.out or Path(f"{stem}-tuned.toml")
    if out.suffix != ".toml" or os.path.lexists(out):
        what = "is there already" if os.path.lexists(out) else "does not end in .toml"
        raise SettingsError(
            [f"tune --out: {visible(str(out), 200)} {what}, expected the name of a new file: --out FILE.toml"]
        )
    if not out.parent.is_dir():
        raise SettingsError([f"tune --out: {visible(str(out.parent), 200)} is no folder, expected one to write into"])
    return Asked(file, tuple(asked.overrides), out, asked.seconds, asked.any)


def _of_run(run: str, overrides: list[str], trust: Sequence[str]) -> tuple[str, str, list[str]]:
    """The settings file of a run, the name of the run without its time, and overrides with the folders of its code.

    Raises:
        NotFound: there is no such run.
        SettingsError: its settings cannot be used.
        Untrusted: they name code of a run from elsewhere.
    """
    folder = find_run(run)
    settings = settings_of_run(folder, overrides, trust)
    folders = f"run.python_path={json.dumps(list(settings.run.python_path))}"
    return str(folder / SETTINGS), settings.run.name, [*overrides, folders]


class _Tuning:
    """Measures what a search asks for, in this order, until nothing is left or the time is over."""

    def __init__(self, asked: Asked, settings: Settings, console: Console) -> None:
        self._asked, self._settings, self._console = asked, settings, console
        self._began = time.monotonic()
        self._search: Search | None = None
        self._shortest = RESERVE_S
        self._why_over = ""

    async def until_signal(self) -> int:
        """Measure; a signal ends it at once. Returns the exit code."""
        loop, task = asyncio.get_running_loop(), asyncio.create_task(self._measure_all())
        caught: list[signal.Signals] = []

        def stop(number: signal.Signals) -> None:
            caught.append(number)
            task.cancel()

        for number in STOPPING:
            loop.add_signal_handler(number, stop, number)
        try:
            await task
        except asyncio.CancelledError:
            if not caught:
                raise
            self._why_over = f"stopped by {caught[0].name}"
            return 128 + caught[0]
        finally:
            for number in STOPPING:
                loop.remove_signal_handler(number)
        return 0

    def finish(self, code: int) -> int:
        """Tell what was found, and write it unless a signal came; returns the exit code."""
        search = self._search
        if search is None or (first := search.first) is None or (best := search.best) is None:
            self._console.finish(f"{self._why_over}, before anything was measured; nothing was written")
            return code
        gain = best.rate / first.rate - 1 if first.rate else 0.0
        found = f"{in_words(best.changes)}: {best.rate:,.0f} rows/s, as it was {first.rate:,.0f} ({gain:+.0%})"
        if code:
            self._console.finish(f"{self._why_over}; best so far {found}; nothing was written")
            return code
        sys.stdout.write("\n".join(told([*search.measured.values()])) + "\n")
        if not best.changes:
            self._console.finish(f"nothing was faster than the settings as they are: {first.rate:,.0f} rows/s")
            return code
        try:
            replace_file(self._asked.out, self._text(search, best, first).encode(), durable=False)
        except OSError as error:
            raise ResourceError(
                f"{visible(str(self._asked.out))} cannot be written: {error.strerror or error}"
            ) from error
        self._console.finish(f"{visible(str(self._asked.out))}: {found}")
        return code

    # -- measuring -----------------------------------------------------------------------------------------------------

    @property
    def _left(self) -> float:
        return self._asked.seconds - (time.monotonic() - self._began)

    async def _measure_all(self) -> None:
        first = await self._measured({})
        search = self._search = Search(knobs_of(first.settings), usable_cores(), may_change=self._asked.any)
        self._tell(search, search.tell({}, first.rate, first.advised, first.predicted, limit=first.limit), None)
        while self._left > min(RESERVE_S, 3 * self._shortest) and (changes := search.next()) is not None:
            await self._try(search, changes)
        # The fastest of many short runs was also the luckiest: those that are close run again, by turns.
        for count in range(2, REPEATS + 1):
            for one in search.close_ones():
                if len(one.rates) < count and self._left > self._shortest:
                    await self._try(search, one.changes)

    async def _try(self, search: Search, changes: Mapping[str, Any]) -> None:
        expected = search.prediction(changes)
        try:
            found = await self._measured(changes)
        except MlxeError as error:
            said = visible(str(error).partition("\n")[0], 160)
            self._tell(search, search.tell(changes, 0.0, {}, failed=said), expected)
            return
        one = search.tell(changes, found.rate, found.advised, found.predicted, limit=found.limit)
        self._tell(search, one, expected)

    async def _measured(self, changes: Mapping[str, Any]) -> ShortRun:
        began = time.monotonic()
        found = await measured(self._asked.file, self._asked.overrides, changes)
        self._shortest = min(self._shortest, time.monotonic() - began)
        return found

    def _tell(self, search: Search, one: Measured, expected: float | None) -> None:
        told_so = f", predicted {expected:,.0f}" if expected else ""
        note = "" if search.keeps(one.changes) else " (changes what is learned)"
        result = f"{one.rates[-1]:,.0f} rows/s{told_so}" if not one.failed else f"failed: {one.failed}"
        self._console.line(f"{time.monotonic() - self._began:5.0f} s  {in_words(one.changes)}{note}: {result}")

    # -- the file ------------------------------------------------------------------------------------------------------

    def _text(self, search: Search, best: Measured, first: Measured) -> str:
        """The user's file with the best settings in it, and all that was measured above them."""
        asked, wanted = self._asked, settings_with(self._asked.file, self._asked.overrides, best.changes)
        body = rewritten(asked.file, asked.overrides, best.changes, wanted, asked.out.parent, "tune")
        head = self._head(search, best, first)
        return commented(head) + "\n" + body

    def _head(self, search: Search, best: Measured, first: Measured) -> list[str]:
        day = dt.datetime.now(dt.UTC).strftime("%d %B %Y")
        source = visible(Path(self._asked.file).name, 100)
        gain = best.rate / first.rate - 1
        lines = [
            f"By tune from {source} on {day}, {usable_cores()} cores, of runs that learned for {WINDOW_S:g} s each:",
            f"{first.rate:,.0f} -> {best.rate:,.0f} rows/s ({gain:+.0%}).",
        ]
        if search.keeps(best.changes):
            lines.append(
                "What is learned stays as it is: as many rows of as many environments in each update; other seeds."
            )
        else:
            lines.append("What is learned is NOT as it was: updates learn from other, or from older, rows.")
        return [*lines, "", *told([*search.measured.values()])]
