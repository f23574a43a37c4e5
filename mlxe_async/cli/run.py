"""`python -m mlxe_async FILE.toml`: check the settings, then drive the supervisor until it is done or told to stop."""

from __future__ import annotations

import argparse
import asyncio
import functools
import math
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.errors import SettingsError
from mlxe_async.ipc.processes import breakpoints
from mlxe_async.logs import events
from mlxe_async.settings import Settings, load_settings
from mlxe_async.settings.loading import env_in
from mlxe_async.settings.trust import settings_of_run
from mlxe_async.storage.run_folder import find_run
from mlxe_async.storage.safe_text import visible

if TYPE_CHECKING:
    from mlxe_async.cli.dashboard.companion import Companion
    from mlxe_async.supervisor import Result, Supervisor

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DUMPING = (signal.SIGQUIT, signal.SIGUSR1)
MOST_SEEDS = 100_000
QUIET = [events.Warning.name, events.InitFrom.name]
"Events that are told even where no progress is shown, warnings if they are loud."
SUPERVISOR_NAME = "mlxe-sup"


def run(arguments: Sequence[str]) -> int:
    """Parse the arguments, load the settings, and run or check them. Returns the exit code."""
    parser = Parser(
        "[FILE.toml] [--resume RUN] [--set a.b=VALUE ...] [--seeds N] [--check] [--no-progress] "
        "[--dashboard] [--dashboard-port N] [--dashboard-stays] [--trust MODULE|FOLDER]"
    )
    parser.description = "Learn what FILE.toml says. python -m mlxe_async --help tells more."
    parser.add_argument("file", nargs="?", metavar="FILE.toml", help="the settings")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run that was stopped or died, in its folder")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="a.b=VALUE", help="override a key of the file"
    )
    parser.add_argument("--check", action="store_true", help="check everything that can be known, and start nothing")
    parser.add_argument("--seeds", metavar="N", help="run with N seeds, 0 to N-1, one after another, and report them")
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    parser.add_argument("--dashboard", action="store_true", help="serve a page about the run while it goes on")
    parser.add_argument(
        "--dashboard-port", metavar="N", help="on this port; the first free one from 8421 on if left out"
    )
    parser.add_argument("--dashboard-stays", action="store_true", help="when the run has ended too, until Ctrl-C")
    parser.add_trust()
    asked = parser.parse_args(arguments)
    _refuse_idle_options(asked)
    if asked.trust and (asked.file is not None or asked.seeds is not None):
        told = "--trust: got FILE.toml too, expected --resume RUN alone; code that your own file names runs anyway"
        raise SettingsError([told])
    if asked.seeds is not None:
        return _with_seeds(asked)
    if asked.file is None and asked.resume is None:
        raise SettingsError(["got no settings file, expected FILE.toml, --resume RUN, or both"])
    folder = None if asked.resume is None else _run_folder(asked)
    if asked.file is not None or folder is None:
        settings = _loaded(asked.file, asked.overrides)
    else:
        settings = settings_of_run(folder, asked.overrides, asked.trust)
    page = (
        _companion(asked, folder.parent if folder is not None else Path(settings.run.dir)) if asked.dashboard else None
    )
    shows_progress = settings.logs.progress and not asked.no_progress
    if settings.schedule.kind == "serial" and not shows_progress:
        breakpoints.offer()
    try:
        return _in_loop(settings, folder, check=asked.check, shows_progress=shows_progress, page=page)
    finally:
        if page is not None:
            page.let_go()


def _loaded(file: str, overrides: Sequence[str]) -> Settings:
    """The settings; where something is wrong, a task that there is not is told beside it."""
    try:
        return load_settings(file, overrides)
    except SettingsError as error:
        env, place = env_in(file, overrides)
        if not env or any("task.env: " in problem for problem in error.problems):
            raise
        from mlxe_async.tasks.making import unknown_id  # brings gymnasium, for which no other mistake waits

        told = unknown_id(env)
        raise SettingsError([*error.problems, *([f"{place}: {told}"] if told else [])]) from None


def _refuse_idle_options(asked: argparse.Namespace) -> None:
    """Refuse options about a page where there is none."""
    given = [name for name in ("port", "stays") if getattr(asked, f"dashboard_{name}")]
    if given and not asked.dashboard:
        raise SettingsError([f"--dashboard-{given[0]}: got no --dashboard, expected it too"])
    other = "--check" if asked.check else "--seeds"
    if asked.dashboard and (asked.check or asked.seeds is not None):
        raise SettingsError(
            [f"--dashboard: got {other} too, expected a run; the dashboard command shows a folder of runs"]
        )


def _companion(asked: argparse.Namespace, base: Path) -> Companion:
    """The page beside the run: its port is had, or refused, before anything starts."""
    from mlxe_async.cli.dashboard.command import port_of
    from mlxe_async.cli.dashboard.companion import opened

    return opened(port_of(asked.dashboard_port, "--dashboard-port"), base, stays=asked.dashboard_stays)


def _with_seeds(asked: argparse.Namespace) -> int:
    """The short form of `compare FILE.toml --seeds 0..N-1`."""
    from mlxe_async.cli.compare import run as compare

    if not (re.fullmatch(r"[0-9]{1,9}", asked.seeds) and 1 <= int(asked.seeds) <= MOST_SEEDS):
        got = visible(asked.seeds, 60)
        told = f'--seeds: got "{got}", expected how many, from 1 to {MOST_SEEDS:,}; which ones: compare --seeds A..B'
        raise SettingsError([told])
    others = [name for name, given in (("--resume", asked.resume), ("--check", asked.check)) if given]
    if others or asked.file is None:
        got = f"{' and '.join(others)} too" if others else "no settings file"
        raise SettingsError([f"--seeds: got {got}, expected FILE.toml --seeds N, and --set if you like"])
    sets = [part for override in asked.overrides for part in ("--set", override)]
    return compare([asked.file, "--seeds", f"0..{int(asked.seeds) - 1}", *sets])


def _run_folder(asked: argparse.Namespace) -> Path:
    """The folder of the run to go on with: by path, or by name where the settings keep runs."""
    if asked.file is not None:
        return find_run(asked.resume, load_settings(asked.file, asked.overrides).run.dir)
    # The run's own settings are not known yet, and may have keys that others do not have.
    where = [override for override in asked.overrides if override.partition("=")[0].strip() == "run.dir"]
    return find_run(asked.resume, load_settings({"task": {"env": "CartPole-v1"}}, where).run.dir)


def _in_loop(
    settings: Settings, folder: Path | None, *, check: bool, shows_progress: bool, page: Companion | None
) -> int:
    # The settings are good: now it may take the time to import what a run needs.
    from mlxe_async.cli.limits import require_address_space

    require_address_space()
    import uvloop

    from mlxe_async.supervisor import Supervisor

    supervisor = Supervisor(settings, resume=folder)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if check:
            return runner.run(_check(supervisor))
        if page is not None:
            return runner.run(_finish_beside(page, supervisor, shows_progress=shows_progress))
        return runner.run(finish_run(supervisor, shows_progress=shows_progress))


async def _check(supervisor: Supervisor) -> int:
    console = Console(sys.stderr)
    signals = _Signals(supervisor, console, "stopping the check")
    signals.install()
    try:
        report = await supervisor.check()
    except asyncio.CancelledError:
        if signals.first is None:
            raise
        console.finish(f"stopped at once by a second signal after {signals.first.name}")
        return 128 + signals.first
    finally:
        signals.remove()
    cautions = [f"note: {caution}" for caution in report.cautions]
    chosen = _chosen(report.facts)
    found = (
        *report.plan,
        "",
        *probed(report.facts),
        *_taken_as_numbers(supervisor.settings, report.facts),
        *_of_ones_own(supervisor.settings.algorithm.name),
        executors_of(supervisor.settings),
        *report.survey,
        *chosen,
        *report.start,
        *cautions,
    )
    sys.stdout.write("".join(f"{visible(line)}\n" for line in found))
    sys.stdout.flush()  # into a file or a pipe, too, the verdict comes last
    odd = any("NOT AS IT SHOULD BE" in line for line in report.survey)
    but = ", the environment is not as it should be (see above)" if odd else ""
    console.finish(f"the settings are fine{but}, one update on made-up rows went well, and nothing was started")
    return 0


def probed(facts: Mapping[str, Any]) -> Iterator[str]:
    """Return what the probe found, a line each."""
    from mlxe_async.rows import Spaces

    spaces, task = Spaces.from_json(facts["spaces"]), facts.get("task", {})
    yield f"observation   {spaces.observation_words}"
    yield f"action        {spaces.action_words}{', with a mask of those that are allowed' if spaces.masked else ''}"
    yield f"episode limit {task.get('max_episode_steps') or 'none'}"
    if network := facts.get("network"):
        yield f"network       {network}"
    yield f"weights       {sum(math.prod(shape) for _, shape in facts.get('parameters', [])):,}"
    yield from (f"note: {note}" for note in task.get("notes", []))


def _taken_as_numbers(settings: Settings, facts: Mapping[str, Any]) -> Iterator[str]:
    """Tell of small pictures beside other parts: no rule chooses convolutions for them, as for one that is alone."""
    from mlxe_async.networks.pictures import BODIES, image_of
    from mlxe_async.parts import BYTES
    from mlxe_async.rows import Spaces

    spaces = Spaces.from_json(facts["spaces"])
    is_open = facts.get("algorithm", {}).get("body") == "none"
    if not is_open or ("algorithm", "body") in settings.places.written:
        return
    bytes_of_three_axes = [part for part in spaces.parts if len(part.shape) == len("CHW") and part.dtype == BYTES]
    small = [one for one in bytes_of_three_axes if min(image_of(one.shape)[0][1:]) >= BODIES["small"].smallest]
    if small:
        names = ", ".join(part.name for part in small)
        yield f'note: {names}: taken as numbers, without convolutions; algorithm.body = "small" sees pictures there'


def _of_ones_own(name: str) -> Iterator[str]:
    """Tell by what an algorithm of one's own is other than a built-in one, of which it may be a copy."""
    if ":" in name:
        yield f"note: {name} is no built-in algorithm: keys left out have its own defaults, not the task's,"
        yield "      and updates are done as it is written; to compare, write keys out, and learner.fast = false"


def _chosen(facts: Mapping[str, Any]) -> Iterator[str]:
    """The section on defaults that follow from the task, if there are any."""
    from mlxe_async.cli.advise import choices_in_words

    if choices := facts.get("chosen"):
        yield "defaults chosen, by rule; a key that you write is taken instead:"
        yield from choices_in_words(choices)


def executors_of(settings: Settings) -> str:
    """Tell how many executors a run has, and why, where the settings leave it to this program."""
    from mlxe_async.cores import usable_cores

    why = f' ("auto", of {usable_cores()} cores)' if ("schedule", "executors") in settings.places.automatic else ""
    return f"executors     {settings.schedule.executors}{why}"


async def _finish_beside(page: Companion, supervisor: Supervisor, *, shows_progress: bool) -> int:
    """Run to the end beside a page, which ends with it, or stays if that was asked for and no signal came."""
    console = Console(sys.stderr)
    page.attend(console)
    supervisor.subscribe(page.begin, [events.RunStart.name])
    try:
        code = await finish_run(supervisor, shows_progress=shows_progress, console=console)
        if code < 128:
            await page.stay()
    finally:
        await page.close()
    return code


async def finish_run(supervisor: Supervisor, *, shows_progress: bool, console: Console | None = None) -> int:
    """Run to the end, showing how it goes and minding signals; returns the exit code.

    Args:
        supervisor: of the run.
        shows_progress: whether the run is shown.
        console: where; None: on stderr.
    """
    from mlxe_async.cli.telling import told
    from mlxe_async.cli.view.display import Display
    from mlxe_async.ipc.processes import linux

    # Here and not in the supervisor: a program that embeds a run keeps its own name.
    linux.set_own_name(SUPERVISOR_NAME)
    linux.receive_signals()
    console = console or Console(sys.stderr)
    if supervisor.settings.supervision.on_stdout_closed == "stop":
        console.on_gone = functools.partial(supervisor.request_stop, "output_closed")
    display = Display(console)
    if shows_progress:
        supervisor.subscribe(display.feed, columns=display.feed_columns)
        display.start()
    else:
        # Not with all lines: those of thousands of episodes a second cost more to hand over than to write.
        supervisor.subscribe(lambda line: console.line(told(line)) if line.get("loud", True) else None, QUIET)
    signals = _Signals(supervisor, console, "stopping, and saving what can be saved")
    signals.install()
    try:
        result = await supervisor.run()
    except asyncio.CancelledError:
        if signals.first is None:
            raise
        display.stop()
        console.finish(f"stopped at once by a second signal after {signals.first.name}")
        return 128 + signals.first
    finally:
        display.stop()
        signals.remove()
    console.finish(*result.unexported, ending(result))
    if result.exit_code == 0 and signals.first is not None and result.reason == signals.first.name:
        return 128 + signals.first
    return result.exit_code


def ending(result: Result) -> str:
    """Return how a run ended, in one sentence."""
    if result.replayed is not None:
        return f"{result.replayed}: {result.run_dir}"
    how = "failed" if result.exit_code not in (0, 129, 130, 143) else "finished"
    if result.solved_at is not None:
        from mlxe_async.cli.telling import published_at

        how = f"solved by {published_at(result.solved_at)}; {how}"
    told = (
        f"{how} ({result.reason}) after {result.episodes:,} episodes, {result.steps:,} steps, "
        f"{result.updates:,} updates and {result.seconds:.1f} s"
    )
    return f"{'; '.join((told, *_besides(result)))}: {result.run_dir}"


def _besides(result: Result) -> Iterator[str]:
    """Tell what went wrong on the way, and which version to load where none solved the task."""
    wrong = {"fault of the environment": result.env_errors, "process started again": result.restarts}
    for what, count in wrong.items():
        if count:
            several = what.replace("fault", "faults").replace("process", "processes") if count > 1 else what
            yield f"{count:,} {several}"
    if result.score is not None and result.best is not None and result.solved_at is None:
        yield f"the best test, of version {result.best:,}, came to {result.score:.5g} (--checkpoint best)"


class _Signals:
    """The first signal asks the run to stop, the second stops it at once."""

    def __init__(self, supervisor: Supervisor, console: Console, answer: str) -> None:
        self._supervisor = supervisor
        self._answer = answer
        self._console = console
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._installed: list[signal.Signals] = []
        self._before: dict[signal.Signals, Any] = {}
        self.first: signal.Signals | None = None

    def install(self) -> None:
        for number in STOPPING:
            if signal.getsignal(number) is signal.SIG_IGN and number == signal.SIGHUP:
                continue  # started under nohup
            self._before[number] = signal.getsignal(number)
            self._loop.add_signal_handler(number, self._handle, number)
            self._installed.append(number)
        # Not the loop's: these are asked for when it is stuck, too.
        self._before |= {number: signal.signal(number, self._dump) for number in DUMPING}

    def remove(self) -> None:
        for number in self._installed:
            self._loop.remove_signal_handler(number)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._installed.clear()
        self._before.clear()

    def _dump(self, number: int, _frame: object) -> None:
        name = signal.Signals(number).name
        path = self._supervisor.dump_stacks(name)
        said = f"stacks and status are in {path}" if path else "there is no run folder to write stacks to"
        self._loop.call_soon_threadsafe(self._console.line, f"{name}: {said}; the run goes on")

    def _handle(self, number: signal.Signals) -> None:
        if self.first is None:
            self.first = number
            self._console.line(f"{number.name}: {self._answer}; once more stops at once")
            self._supervisor.request_stop(number.name)
        elif self._task is not None:
            self._task.cancel()
