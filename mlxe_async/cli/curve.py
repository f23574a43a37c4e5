"""`curve RUN ...`: the learning curves of runs by environment steps, as CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from mlxe_async.analysis.curve import Row, columns_of, curve_of
from mlxe_async.cli.arguments import Parser
from mlxe_async.errors import ResourceError
from mlxe_async.logs.reader import log_of, read_log
from mlxe_async.storage.files import replace_file
from mlxe_async.storage.safe_text import visible

ABOUT = """\
Print the learning curves of runs as CSV, a line for each stretch of environment steps: seconds, episodes, updates and
version at its end; returns and lengths of the training episodes that ended in it; the mean return of tests of versions
published in it; policy lag and what the algorithm measured (learn.NAME), means over its learn events. What is not known
stays empty."""


def run(arguments: Sequence[str]) -> int:
    """Write the CSV. Returns the exit code."""
    parser = Parser(
        "curve RUN ... [--dir FOLDER] [--every STEPS] [--out FILE]", ABOUT, "curve latest --every 1000 --out curve.csv"
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help='folders of runs, names in runs/, or "latest"')
    parser.add_argument(
        "--every", type=int, metavar="STEPS", help="width of a stretch; when left out, such that there are 80 to 400"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there instead of printing it")
    parser.add_dir()
    asked = parser.parse_args(arguments)
    if asked.every is not None and asked.every < 1:
        parser.error(f"--every: got {asked.every}")
    found: list[tuple[str, Row]] = []
    for name in asked.runs:
        path = log_of(name)
        found += [(path.parent.name, row) for row in curve_of(read_log(path), asked.every, name=visible(name)).rows()]
    text = as_csv(found)
    if asked.out is None:
        sys.stdout.write(text)
        return 0
    try:
        replace_file(asked.out.absolute(), text.encode("utf-8", "backslashreplace"), durable=False)
    except OSError as error:
        raise ResourceError(f"{visible(str(asked.out))} cannot be written: {error.strerror}") from error
    return 0


def as_csv(found: Sequence[tuple[str, Row]]) -> str:
    """The rows of runs, each under the name of its run."""
    columns, text = columns_of([row for _, row in found]), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *columns])
    for name, row in found:
        writer.writerow([name, *(_cell(row.get(column)) for column in columns)])
    return text.getvalue()


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.7g}"
