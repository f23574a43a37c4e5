"""Serious bars: `python tests/benchmarks/bars.py FILE ... [--steps N] [--seeds 5]`; `--show` only prints the table.

Each settings file is run for each seed, without an end but its environment steps, and each finished run is a line of
`results/bars.jsonl`: what is there is not run again, so the command may be stopped at any time. The table, kept beside
it as `bars.md`, shows the interquartile mean of the seeds, its 95 % bootstrap interval, and the bar that the interval's
lower end is to clear, beside what others reach (`references.toml`). A run counts by the mean of its last ten tests, or
where the reference says so by the greedy episodes of its final weights; one that diverged counts as the worst of all.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import math
import signal
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recorded import RESULTS, Job, Record, complete, last_tests, read, tabled

from mlxe_async import load_settings
from mlxe_async.analysis.statistics import bootstrap, iqm, iqms
from mlxe_async.errors import MlxeError

FIRST_SEED = 1000
"Seeds that nothing was chosen on."
REFERENCES = Path(__file__).with_name("references.toml")
HEAD = ("settings", "task", "steps", "seeds", "mean of the middle", "95 %", "bar", "clears it", "failed", "s", "others")


def reference_for(record: Mapping[str, Any], references: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What is known of these settings, or else of this algorithm and task; a bar at more steps is told as one."""
    of_both = (record["algorithm"], record["env"])
    named = [one for one in references if one.get("name") == record["name"]]
    others = [one for one in references if "name" not in one and (one["algorithm"], one["env"]) == of_both]
    return next(iter(named + others), {})


def row_of(records: Sequence[Record], references: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The row of a table for the seeds of one settings file."""
    first, known = records[0], reference_for(records[0], references)
    counted = (lambda record: record["final"]) if known.get("judged") == "final" else last_tests
    values = [-math.inf if record["failed"] else counted(record) for record in records]
    low, high = bootstrap(values, iqms)
    bar, clears = "", ""
    if "bar" in known:
        bar = f"{known['bar']:,} at {known['steps']:,}"
        clears = "too few steps" if low < known["bar"] and first["steps"] < known["steps"] else _said(low, known["bar"])
    seconds = sorted(record["seconds"] for record in records if record["seconds"] is not None)
    return (
        first["name"],
        first["env"],
        f"{first['steps']:,}",
        str(len(records)),
        f"{iqm(values):.1f}",
        f"{low:.1f} to {high:.1f}",
        bar,
        clears,
        str(sum(record["failed"] is not None for record in records)),
        f"{seconds[len(seconds) // 2]:.0f}" if seconds else "",
        known.get("told", ""),
    )


def _said(low: float, bar: float) -> str:
    return "yes" if low >= bar else f"no, by {bar - low:.1f}"


def table(records: Iterable[Record]) -> list[str]:
    """The lines of the table of all records, each settings file's runs of equal length in one row."""
    references = tomllib.loads(REFERENCES.read_text())["reference"]
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record["name"], record["settings"], record["steps"]), []).append(record)
    rows = [row_of(group, references) for group in groups.values()]
    return tabled(HEAD, rows)


def main(words: Sequence[str]) -> int:
    """Do what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="settings files")
    parser.add_argument("--steps", type=int, help="environment steps of each run; left out, stop.env_steps of the file")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="the first of them")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="as in a run")
    parser.add_argument("--results", type=Path, default=RESULTS / "bars.jsonl", help="where finished runs are kept")
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    if not asked.show and not asked.files:
        parser.error("expected settings files, or --show")
    try:
        if not asked.show:
            complete(_jobs(asked), asked.results)
        told = "\n".join(table(read(asked.results))) + "\n"
        asked.results.with_suffix(".md").write_text(told)
        sys.stdout.write(told)
    except (MlxeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _jobs(asked: argparse.Namespace) -> list[Job]:
    jobs = []
    for file in asked.files:
        steps = asked.steps or load_settings(file, asked.overrides).stop.env_steps
        if steps is None:
            raise ValueError(f"{file}: expected stop.env_steps, or --steps")
        name = " ".join([file.stem, *asked.overrides])
        seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
        jobs += [Job(name, file, tuple(asked.overrides), steps, seed, {}) for seed in seeds]
    return jobs


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of a run is not left behind
    sys.exit(main(sys.argv[1:]))
