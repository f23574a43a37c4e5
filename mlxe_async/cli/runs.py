"""`runs list` and `runs prune`: which runs there are, and away with old ones.

Pruning only says what it would do, until it is told `--yes`. It keeps what is running, what solved its task, what bears
another name than a run gave it, and every folder that holds a user's own files.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlxe_async.analysis.past_runs import PastRun, past_runs, point_latest, remove
from mlxe_async.cli.arguments import Parser
from mlxe_async.errors import MlxeError, RunFailed, SettingsError
from mlxe_async.storage.safe_text import visible

KEPT = 10
DAY_S = 86_400.0
MOST_DAYS = 1_000_000
LIST = "runs list [--dir DIR] [--json]"
PRUNE = "runs prune [--keep N] [--older-than DAYS] [--solved-too] [--dir DIR] [--yes]"
HELP = f"""\
usage: python -m mlxe_async {LIST}
       python -m mlxe_async runs prune [--keep N] [--older-than DAYS]
                                       [--solved-too] [--dir DIR] [--yes]

list    the runs in DIR (runs/ when left out) and what became of them;
        --json: a JSON object a line
prune   say which old runs would be removed; --yes removes them. Kept are the
        newest N ({KEPT}, or none with --older-than), those younger than DAYS,
        those that solved their task (unless --solved-too), those that go on,
        those with another name than a run gives, and those that hold a file
        which no run makes

example:
  python -m mlxe_async runs prune --keep 20 --older-than 7
"""


def run(arguments: Sequence[str]) -> int:
    """List or prune. Returns the exit code."""
    commands = {"list": _list, "prune": _prune}
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        sys.stdout.write(HELP)
        return 0
    if name not in commands:
        got = f'got "{visible(name, 60)}"' if name else "got nothing"
        raise SettingsError([f"runs: {got}, expected runs list or runs prune"])
    if {"-h", "--help"} & set(arguments[1:]):
        sys.stdout.write(HELP)
        return 0
    commands[name](arguments[1:])
    return 0


def _list(arguments: Sequence[str]) -> None:
    parser = Parser(LIST)
    parser.add_argument("--dir", type=Path, default=Path("runs"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    runs = past_runs(asked.dir)
    if asked.json:
        for one in runs:
            sys.stdout.write(
                json.dumps({**vars(one), "path": str(one.path), "started": one.started.isoformat()}) + "\n"
            )
        return
    if not runs:
        sys.stdout.write(f"no runs in {visible(str(asked.dir))}\n")
    rows = [("run", "what", "state", "episodes", "steps", "time", "size"), *map(_row, runs)] if runs else []
    sys.stdout.writelines(f"{line}\n" for line in _aligned(rows))


def _prune(arguments: Sequence[str]) -> None:
    parser = Parser(PRUNE)
    parser.add_argument("--keep", type=int)
    parser.add_argument("--older-than", type=float, metavar="DAYS")
    parser.add_argument("--solved-too", action="store_true")
    parser.add_argument("--dir", type=Path, default=Path("runs"))
    parser.add_argument("--yes", action="store_true")
    asked = parser.parse_args(arguments)
    keep = (KEPT if asked.older_than is None else 0) if asked.keep is None else asked.keep
    days = 0.0 if asked.older_than is None else asked.older_than
    if keep < 0 or not 0 <= days < MOST_DAYS:
        raise SettingsError(
            [f"runs prune: got N = {keep} and DAYS = {days:g}, expected at least 0, and DAYS below {MOST_DAYS:,}"]
        )
    before = time.time() - days * DAY_S
    runs = past_runs(asked.dir)
    failures, removed, freed = [], 0, 0
    for number, one in enumerate(runs):
        reason = _kept_because(one, is_recent=number < keep, before=before, solved_too=asked.solved_too)
        name = visible(one.path.name)
        if reason:
            sys.stdout.write(f"keep    {name}: {reason}\n")
            continue
        if asked.yes:
            try:
                remove(one)
            except MlxeError as error:
                failures.append(str(error))
                continue
        removed, freed = removed + 1, freed + one.bytes
        sys.stdout.write(f"{'removed' if asked.yes else 'remove '} {name}: {one.state}, {size(one.bytes)}\n")
    if asked.yes:
        point_latest(asked.dir)
    what = f"{removed} of {len(runs)} runs, {size(freed)}"
    sys.stdout.write(f"removed {what}\n" if asked.yes else f"would remove {what}; --yes does it\n")
    if failures:
        raise RunFailed("\n".join(map(visible, failures)))


def _kept_because(run: PastRun, *, is_recent: bool, before: float, solved_too: bool) -> str:
    if run.held:
        return "it is running"
    if run.foreign:
        return f"it holds {visible(', '.join(run.foreign), 100)}, which no run makes"
    if run.solved and not solved_too:
        return "it solved its task"
    if is_recent:
        return "it is one of the newest"
    return "" if run.touched <= before else "it is not that old"


def _row(run: PastRun) -> tuple[str, ...]:
    what = f"{run.algorithm or '?'} on {run.env or '?'}, {run.schedule or '?'}"
    state = f"{run.state}, solved" if run.solved and run.state != "solved" else run.state
    return (
        visible(run.path.name, 60),
        visible(what, 50),
        visible(state, 20),
        "" if run.episodes is None else f"{run.episodes:,}",
        "" if run.env_steps is None else f"{run.env_steps:,}",
        "" if run.seconds is None else f"{run.seconds:,.0f} s",
        size(run.bytes),
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        left = [f"{cell:<{width}}" for cell, width in zip(row[:3], widths[:3], strict=True)]
        right = [f"{cell:>{width}}" for cell, width in zip(row[3:], widths[3:], strict=True)]
        yield "  ".join([*left, *right]).rstrip()


def size(count: float) -> str:
    """`512 B`, `3.4 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
