"""The command line: what is asked for, how it went, and the exit code that says so.

A mistake of the user's is told in one line per problem, without a traceback. Nothing heavy is imported before the
settings are known to be good, and torch by few commands alone, which `HEAVY` names too.

    arguments, console, telling, limits         what commands share: arguments, lines that never harm, limits
    elsewhere                                   command lines of other packages, answered with what to type here
    run, replay, follow, view, dashboard        run a file, repeat a recorded run; watch one: lines, terminal, browser
    new, advise, explain, schema, templates     begin: a template, algorithms for a task, keys in words, the schema
    evaluate, play, curve, report, trace        look at a run: its test, episodes, curves, one page, one timeline
    export, export_policy, study, repro         its log and its policy for other tools; figures; a crash lived again
    runs                                        which runs there are, and away with old ones
    compare, suite, keys, studying              several files and seeds side by side
    sweep, sweeping                             search settings by trials
    tune, measuring, rewriting                  search settings for the rate; a file with changed values
"""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mlxe_async.cli.console import Console, open_missing_streams, silence_broken_pipes
from mlxe_async.cli.limits import require_address_space, require_descriptors
from mlxe_async.errors import MlxeError, ResourceError, SettingsError, UnsupportedPlatform
from mlxe_async.ipc.processes import linux
from mlxe_async.storage.safe_text import visible

# Each names a module with `run(arguments: Sequence[str]) -> int`, imported when asked for, and a line of help.
COMMANDS: dict[str, tuple[str, str]] = {
    "new": ("mlxe_async.cli.new", "write settings, task, algorithm and test of your own"),
    "advise": ("mlxe_async.cli.advise", "tell which algorithms fit a task, and which settings"),
    "follow": ("mlxe_async.cli.follow", "show a run while it goes on, or print its events"),
    "play": ("mlxe_async.cli.play", "play episodes with a run's saved policy"),
    "eval": ("mlxe_async.cli.evaluate", "test a run's saved policy as the run did, or harder"),
    "curve": ("mlxe_async.cli.curve", "print a run's learning curve by environment steps, as CSV"),
    "trace": ("mlxe_async.cli.trace", "write one timeline of all processes of a run, for Perfetto"),
    "report": ("mlxe_async.cli.report", "write one HTML page about runs: curves, time, faults"),
    "dashboard": ("mlxe_async.cli.dashboard.command", "serve a page that shows runs while they go on"),
    "export": ("mlxe_async.cli.export", "write what a run told for TensorBoard, W&B, MLflow; tables"),
    "tune": ("mlxe_async.cli.tune", "measure short runs, and write faster settings"),
    "compare": ("mlxe_async.cli.compare", "run settings files with many seeds, and compare"),
    "sweep": ("mlxe_async.cli.sweep", "search values of settings by Optuna, and write the best"),
    "study": ("mlxe_async.cli.study", "draw moving averages of runs, or tell what a policy does"),
    "replay": ("mlxe_async.cli.replay", "do again what a recorded run did, bit for bit"),
    "repro": ("mlxe_async.cli.repro", "live the episode of a crash report again"),
    "runs": ("mlxe_async.cli.runs", "list run folders, or remove old ones"),
    "schema": ("mlxe_async.cli.schema", "print the JSON schema of settings, or of the log"),
}

# Import numpy or torch, which end the process in their own words where they get no memory.
HEAVY = ("advise", "play", "eval", "report", "export", "tune", "compare", "sweep", "study", "replay", "repro", "schema")

HELP = """\
usage: python -m mlxe_async [FILE.toml] [--resume RUN] [--set a.b=VALUE ...]
                            [--seeds N] [--check] [--no-progress]
                            [--dashboard] [--trust MODULE|FOLDER]
       python -m mlxe_async COMMAND ...

Learn what FILE.toml says: which task, by which algorithm, and who waits for
whom. A file with [task] env = "CartPole-v1" alone runs.

  --resume RUN      go on with a run that was stopped or died, in its folder;
                    by its own settings, if there is no file
  --set a.b=VALUE   override a key of the file; VALUE is TOML, or else a text;
                    may be repeated
  --check           check settings, memory and environment, measure what a
                    step and an update cost, and start nothing
  --seeds N         run FILE.toml with N seeds, 0 to N-1, and compare them
  --no-progress     show no progress
  --dashboard       serve a page about the run on this machine while it goes
                    on; --dashboard-port N: on this port; --dashboard-stays:
                    when it has ended too, until Ctrl-C
  --trust NAME      with --resume, play and all that take a RUN: run code of a
                    run from elsewhere, by its module's name or its folder;
                    runs that you made here, and built-in code, need none
  --version
  --help            this page

commands:
{commands}

RUN is the path of a run folder, the name of one in runs/, or "latest".

more help, a page each:
  --help TABLE      keys of a table of the settings file, with ranges and
                    defaults: {tables}
  --help ALGORITHM  keys of an algorithm: {algorithms}
  --help COMMAND    options of a command, and an example
  --help KEY        the table that has a key, also by its name elsewhere
  --help settings   all tables at once

exit codes:
  0     finished, by whichever stop condition
  2     mistake in the settings, the task or the command; nothing was started
  3     the run failed
  4     not enough memory, disk, descriptors, processes or permissions
  5     numeric failure
  75    another run holds the run folder
  129, 130, 143   stopped by SIGHUP, SIGINT (Ctrl-C), SIGTERM; the newest
        weights are saved, or it is 4; a second signal stops at once
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises for what a user or the host did.

    Args:
        argv: the arguments; by default those of this process.
    """
    open_missing_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    console = Console(sys.stderr)
    try:
        code = _command(arguments)
        sys.stdout.flush()
    except SettingsError as error:
        console.finish(*error.problems)
        code = error.exit_code
    except MlxeError as error:
        console.finish(*getattr(error, "stack", "").splitlines(), *_lines(str(error)))
        code = error.exit_code
    except KeyboardInterrupt:
        console.finish("interrupted before anything was started")
        code = 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has gone
        code = 0
    except Exception as error:  # noqa: BLE001 - a mistake of ours: say all we know, and keep the promise of a last line
        lacking = linux.lack(error)
        if lacking is None:
            console.finish(*traceback.format_exc().splitlines(), f"an error of mlxe_async itself: {error!r}")
        else:
            console.finish(*_lines(str(lacking)))
        code = 3 if lacking is None else lacking.exit_code
    silence_broken_pipes()
    return code


def help_text() -> str:
    """Return what `--help` prints."""
    from mlxe_async.cli.explain import algorithm_names, table_names

    commands = "\n".join(f"  {name:<9} {about}" for name, (_, about) in COMMANDS.items())
    tables = textwrap.fill(", ".join(table_names()), 79, initial_indent=" " * 30, subsequent_indent=" " * 20)
    algorithms = textwrap.fill(", ".join(algorithm_names()), 79, initial_indent=" " * 42, subsequent_indent=" " * 20)
    return HELP.format(commands=commands, tables=tables.lstrip(), algorithms=algorithms.lstrip())


def _command(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "help") and arguments[1:2] and arguments[1] in COMMANDS:
        arguments, first = [arguments[1], "--help"], arguments[1]
    if first in ("-h", "--help", "help"):
        sys.stdout.write(_help_on(arguments[1]) if arguments[1:] else help_text())
        return 0
    if first == "--version":
        from mlxe_async import __version__

        sys.stdout.write(f"mlxe_async {__version__}\n")
        return 0
    if not sys.platform.startswith("linux"):
        raise UnsupportedPlatform(f"mlxe_async runs on Linux, and this is {sys.platform}")
    require_descriptors()
    try:
        Path.cwd()
    except OSError as error:
        message = f"the working folder is gone or cannot be read ({error.strerror}); change to another one"
        raise ResourceError(message) from error
    run: Callable[[Sequence[str]], int]
    if first in HEAVY and not {"-h", "--help"} & set(arguments):
        require_address_space()
    if first in COMMANDS:
        run = importlib.import_module(COMMANDS[first][0]).run
        return run(arguments[1:])
    if not first:
        raise SettingsError(["got no arguments, expected FILE.toml or a command; --help lists them"])
    if (not first.endswith(".toml") or arguments[1:]) and (told := _of_elsewhere(arguments)):
        raise SettingsError([told])
    if not first.startswith("-") and not first.endswith(".toml"):
        raise SettingsError([_neither(first)])
    from mlxe_async.cli.run import run as run_file

    return run_file(arguments)


def _of_elsewhere(arguments: Sequence[str]) -> str:
    from mlxe_async.cli.elsewhere import answered

    return answered(arguments)


def _help_on(name: str) -> str:
    from mlxe_async.cli.explain import (
        algorithm_explained,
        algorithm_names,
        inner_explained,
        inner_names,
        key_explained,
        settings_explained,
        table_names,
    )

    lines: Iterable[str]
    if name == "settings" or name.strip("[]") in table_names():
        lines = settings_explained(None if name == "settings" else name.strip("[]"))
    elif name.strip("[]") in inner_names():
        lines = inner_explained(name.strip("[]"))
    elif name in algorithm_names() or ":" in name or not (lines := key_explained(name)):
        lines = algorithm_explained(name)
    return "\n".join(lines).rstrip("\n") + "\n"


def _neither(first: str) -> str:
    near = difflib.get_close_matches(first, COMMANDS, 1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    commands = ", ".join(COMMANDS)
    return f'got "{visible(first, 60)}", expected a settings file ending in .toml or one of {commands}{hint}'


def _lines(text: str) -> list[str]:
    return text.splitlines() or ["it failed without a word"]
