"""How runs ended, and a table of several: medians of those that solved the task, failures as failures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from mlxe_async.errors import RunFailed
from mlxe_async.logs.reader import read_log

FAILURE = "-"


@dataclass(frozen=True)
class Outcome:
    """One run, judged. All counts are those at the moment when the first of the passing versions was published.

    Args:
        seed: the run's seed.
        solved: whether it solved its task.
        episodes: training episodes started.
        env_steps: environment steps.
        updates: updates of the weights.
        cpu_seconds: CPU time of all processes but the evaluator.
        seconds_to_publication: from the start of the command.
        seconds_to_exit: from the start of the command to its end, tests included.
        tests: versions tested in the whole run.
        reason: what stopped the run.
    """

    seed: int
    solved: bool
    episodes: float | None
    env_steps: float | None
    updates: float | None
    cpu_seconds: float | None
    seconds_to_publication: float | None
    seconds_to_exit: float
    tests: int
    reason: str


def outcome(run: str | Path, started_ns: int, seconds_to_exit: float) -> Outcome:
    """Judge a finished run by its log.

    Args:
        run: the run's folder.
        started_ns: when its command was started, by the host's monotonic clock.
        seconds_to_exit: how long the command took.

    Raises:
        RunFailed: the log has no end: the run was killed.
    """
    seed, solved, end, tests = 0, None, None, 0
    for line in read_log(run):
        if line["event"] == "run_start":
            seed = line["seed"]
        elif line["event"] == "evaluation":
            tests += 1
        elif line["event"] == "solved":
            solved = line
        elif line["event"] == "run_end":
            end = line
    if end is None:
        raise RunFailed(f"{run}: expected a finished run, its log has no run_end")
    at = solved or {}
    return Outcome(
        seed=seed,
        solved=solved is not None,
        episodes=at.get("episodes_started"),
        env_steps=at.get("env_steps"),
        updates=at.get("updates"),
        cpu_seconds=at.get("cpu_seconds"),
        seconds_to_publication=(at["published_ns"] - started_ns) / 1e9 if solved else None,
        seconds_to_exit=seconds_to_exit,
        tests=tests,
        reason=end["reason"],
    )


COLUMNS = ("episodes", "env_steps", "updates", "cpu_seconds", "seconds_to_publication", "seconds_to_exit", "tests")


def summary(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Medians over all runs, a failure counting as worse than anything: None where it falls on one."""
    result: dict[str, float | None] = {}
    for column in COLUMNS:
        values = sorted(float("inf") if (v := getattr(o, column)) is None else float(v) for o in outcomes)
        middle = statistics.median(values)
        result[column] = None if middle == float("inf") else middle
    return result


def table(groups: Iterable[tuple[str, Sequence[Outcome]]]) -> list[str]:
    """Lines of a Markdown table: for each group its runs, then solved, median and worst."""
    lines = [
        "| settings | seed | solved | " + " | ".join(column.replace("_", " ") for column in COLUMNS) + " |",
        "|---|---|---|" + "---|" * len(COLUMNS),
    ]
    for name, outcomes in groups:
        lines += [_row(name, str(o.seed), "yes" if o.solved else o.reason, vars_of(o)) for o in outcomes]
        solved = sum(o.solved for o in outcomes)
        lines.append(_row(f"**{name}**", "median", f"{solved} of {len(outcomes)}", summary(outcomes)))
        worst = {c: max((v for o in outcomes if (v := getattr(o, c)) is not None), default=None) for c in COLUMNS}
        lines.append(_row(f"**{name}**", "worst", "", worst if solved == len(outcomes) else dict.fromkeys(COLUMNS)))
    return lines


def vars_of(one: Outcome) -> dict[str, float | None]:
    """The table's columns of one outcome."""
    return {item.name: getattr(one, item.name) for item in fields(one) if item.name in COLUMNS}


def _row(name: str, seed: str, solved: str, values: dict[str, float | None]) -> str:
    return f"| {name} | {seed} | {solved} | " + " | ".join(_shown(c, values[c]) for c in COLUMNS) + " |"


def _shown(column: str, value: float | None) -> str:
    if value is None:
        return FAILURE
    return f"{value:.1f}" if "seconds" in column else f"{value:,.0f}"
