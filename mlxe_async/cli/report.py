"""`report RUN ...`: one page about runs, made from their folders alone, whether they go on, ended or died."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.errors import ResourceError, SettingsError
from mlxe_async.storage.files import replace_file
from mlxe_async.storage.safe_text import visible

if TYPE_CHECKING:
    from mlxe_async.analysis.report.folder import RunRead
    from mlxe_async.analysis.report.markup import Markup

ABOUT = """\
Write one HTML file about runs: how each ended, returns, tests and losses, where the time went, policy lag, the memory's
age, episode lengths, faults and restarts, settings and machine. Runs of the same settings are drawn as one curve with a
band. Of a study's folder all its runs are taken, with the tables of `compare`.

It needs the run folders alone: the runs may still go on, or may have died, here or on another machine. The page needs
nothing: no network, no script. What is said at its top is printed."""
EXAMPLE = """\
report latest
report runs/*-is runs/*-oa --out is-and-oa.html"""
MOST_RUNS = 200


def run(arguments: Sequence[str]) -> int:
    """Read the runs, write the page, print what it says at its top. Returns the exit code."""
    parser = Parser("report RUN ... [--dir FOLDER] [--out FILE]", ABOUT, EXAMPLE)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help='folders of runs, names in runs/, "latest", or folders of studies'
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the page is written; when left out NAME.html here, or report.html for several",
    )
    parser.add_dir()
    asked = parser.parse_args(arguments)
    from mlxe_async.analysis.report.ending import top
    from mlxe_async.analysis.report.groups import all_runs, group
    from mlxe_async.analysis.report.page import page

    runs, tables = _read(asked.runs)
    groups = group(runs)
    found = all_runs(groups)
    out = asked.out or _free(_place(asked.runs, found[0].name))
    try:
        replace_file(out.absolute(), page(groups, tables).encode(), durable=False)
    except OSError as error:
        raise ResourceError(f"{visible(str(out))} cannot be written: {error.strerror}") from error
    sys.stdout.write("".join(f"{visible(top(one))}\n" for one in found))
    Console(sys.stderr).finish(f"the report is in {visible(str(out))}")
    return 0


def _read(names: Sequence[str]) -> tuple[list[RunRead], list[Markup]]:
    """All runs that are named, each once, and the tables of studies among them.

    Raises:
        SettingsError: there is none, or there are too many.
    """
    from mlxe_async.analysis import study
    from mlxe_async.analysis.report.folder import read_run
    from mlxe_async.analysis.report.kept import read_study

    runs: list[RunRead] = []
    tables: list[Markup] = []
    for name in names:
        if study.has_outcomes(Path(name)):
            more, its_tables = read_study(Path(name))
            runs, tables = [*runs, *more], [*tables, *its_tables]
        else:
            runs.append(read_run(name))
        if len(runs) > MOST_RUNS:
            raise SettingsError([f"report: got more than {MOST_RUNS} runs, expected fewer for one page"])
    if not runs:
        raise SettingsError([f"report: got no run in {visible(', '.join(names), 200)}, expected runs that have begun"])
    return runs, tables


def _place(names: Sequence[str], first_run: str) -> Path:
    """The place of the page if it was not said: under the name of the only run or study, in this folder."""
    if len(names) > 1:
        return Path("report.html")
    from mlxe_async.analysis import study

    name = Path(names[0]).resolve().name if study.has_outcomes(Path(names[0])) else first_run
    return Path(f"{name or 'report'}.html")


def _free(path: Path) -> Path:
    """The place for a page that was not named: one that is free, or has an earlier report in it.

    Raises:
        SettingsError: something else is there.
    """
    from mlxe_async.analysis.report.page import GENERATOR

    try:
        with path.open("rb") as file:
            is_ours = GENERATOR.encode() in file.read(2000)
    except FileNotFoundError:
        return path
    except OSError as error:
        raise SettingsError([f"report: {path} is in the way ({error.strerror}), expected --out FILE"]) from error
    if not is_ours:
        raise SettingsError([f"report: {path} is there and no report of ours, expected --out FILE"])
    return path
