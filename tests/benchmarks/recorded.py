"""Runs whose results are kept, one JSON line each: a long table is resumed, not begun again.

A run is known by its settings as they are written (comments, `[run]` and defaults do not count), its overrides and its
seed. What such a line holds is measured here, by the newest weights: tests of frozen versions at equal distances of
environment steps, and at the end greedy episodes from starts that no test and no training has seen.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxe_async import Supervisor, load_policy, load_settings
from mlxe_async.analysis.study import program_key
from mlxe_async.errors import NumericError, SettingsError

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
TESTS = 20
"""Tests of a run, at most: each takes a core for a moment."""
FINAL_TESTS, FINAL_EPISODES, FINAL_SEED = 10, 20, 7_000_000
Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One run that belongs to a table.

    Args:
        name: of its settings, in the table.
        file: the settings file.
        overrides: `["table.key=VALUE", ...]`, for all seeds.
        steps: environment steps.
        seed: of everything random.
        more: what else the line is to tell, such as the row of the table that it belongs to.
    """

    name: str
    file: Path
    overrides: tuple[str, ...]
    steps: int
    seed: int
    more: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Twelve characters that tell what is run, its seed and number of steps aside."""
        written = tomllib.loads(self.file.read_text())
        written.pop("run", None)
        told = json.dumps([written, sorted(self.overrides)], sort_keys=True, default=str)
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def is_told_by(self, record: Mapping[str, Any]) -> bool:
        """Whether a line is of this very run."""
        return (record["settings"], record["steps"], record["seed"]) == (self.key, self.steps, self.seed)


def read(path: Path) -> list[Record]:
    """The lines of a file of results; none where there is no file.

    Raises:
        ValueError: a line is no record, which is told with its number.
    """
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
            is_run = {"settings", "steps", "seed", "final", "failed", "tests"} <= record.keys()
        except (AttributeError, ValueError):
            is_run = False
        if not is_run:
            raise ValueError(f"{path}:{number}: expected a run as one JSON object, got {line[:80]!r}")
        records.append(record)
    return records


def lines_of(path: Path) -> list[Record]:
    """The lines of any file of results, whatever they tell; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, record: Record) -> None:
    """Add a line, whole and on disk before this returns, so that what was interrupted is simply not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def complete(jobs: Sequence[Job], path: Path, say: Callable[[str], None] = print) -> list[Record]:
    """Do the runs that are not yet recorded; the records of all jobs, in their order."""
    known = read(path)
    missing = [job for job in jobs if not any(job.is_told_by(record) for record in known)]
    say(f"{len(jobs) - len(missing)} of {len(jobs)} runs are recorded in {path}")
    for number, job in enumerate(missing, 1):
        record = done(job)
        append(path, record)
        known.append(record)
        came = record["failed"] or f"final {record['final']:.4g}, {record['seconds']:.0f} s"
        say(f"{number}/{len(missing)} {job.name}, seed {job.seed}: {came}")
    return [next(record for record in known if job.is_told_by(record)) for job in jobs]


def done(job: Job) -> Record:
    """One run from its beginning to its end, and what came of it; that it failed is a result, too."""
    about = {"name": job.name, "settings": job.key, "steps": job.steps, "seed": job.seed, **job.more}
    about["program"] = program_key()
    overrides = [
        *job.overrides,
        f"run.seed={job.seed}",
        "stop.solved=false",
        f"stop.env_steps={job.steps}",
        "evaluation.enabled=true",
        f"evaluation.interval_steps={max(1, job.steps // TESTS)}",
    ]
    settings = load_settings(job.file, overrides)
    if settings.evaluation.rule == "cap":
        told = 'evaluation.rule: got "cap", whose tests end with the first failure, expected "mean_return"'
        raise SettingsError([f"{job.file}: {told}; try --set evaluation.rule=mean_return"])
    about |= {"algorithm": settings.algorithm.name, "env": settings.task.env, "schedule": settings.schedule.kind}
    heard = _Heard()
    with tempfile.TemporaryDirectory(prefix="mlxe-recorded-") as folder:
        supervisor = Supervisor(settings, run_dir=folder)
        supervisor.subscribe(heard, ["weights", "evaluation", "episode_end", "phase"])
        try:
            result = supervisor.run_sync()
        except NumericError as error:  # it diverged
            return about | {"failed": str(error), "final": None, "tests": heard.tests, "seconds": None}
        if result.reason != "env_steps":
            raise KeyboardInterrupt(f"{job.name}, seed {job.seed}: ended by {result.reason}, which is not recorded")
        policy = load_policy(result.run_dir, "last")
        returns = [episode.episode_return for episode in policy.play(FINAL_EPISODES, seed=FINAL_SEED)]
    return about | {
        "failed": None,
        "final": sum(returns) / len(returns),
        "tests": heard.tests,
        "training": heard.training,
        "lag": heard.lag,
        **({"compensation": heard.compensation} if heard.compensation is not None else {}),
        "updates": result.updates,
        "seconds": round(result.seconds, 1),
    }


def tabled(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


def tell(lines: Sequence[str], results: Path) -> None:
    """Print a table, and keep it beside the lines that it was made of."""
    sys.stdout.write("\n".join(lines) + "\n")
    results.with_suffix(".md").write_text("\n".join(lines) + "\n")


def last_tests(record: Mapping[str, Any]) -> float:
    """Mean return of a run's last ten tests; of one that was not tested so often, its final episodes'."""
    returns = [mean for _, mean in record["tests"][-FINAL_TESTS:]]
    return float(sum(returns) / len(returns)) if len(returns) == FINAL_TESTS else float(record["final"])


class _Heard:
    """What a run's log tells while it goes on."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._episodes: list[tuple[int, float]] = []
        self._rows = self._lag = 0.0
        self._compensations: list[float] = []
        self.tests: list[list[float]] = []
        "Environment steps when a version was published, and the mean return of its test."

    def __call__(self, line: Mapping[str, Any]) -> None:
        if line["event"] == "weights":
            self._steps[line["version"]] = line["env_steps"]
        elif line["event"] == "evaluation":
            self.tests.append([self._steps.get(line["version"], 0), line["return_mean"]])
        elif line["event"] == "episode_end":
            self._episodes.append((line["env_steps"], line["episode_return"]))
        elif line["phase"] == "learn" and line["lag_mean"] is not None:
            self._rows += line["rows"]
            self._lag += line["rows"] * line["lag_mean"]
            if (found := line["losses"].get("compensation")) is not None:
                self._compensations.append(found)

    @property
    def lag(self) -> float | None:
        """Policy lag, mean over all rows learned from."""
        return round(self._lag / self._rows, 3) if self._rows else None

    @property
    def compensation(self) -> float | None:
        """By how much delay compensation moved a number of a gradient, mean over the updates; None: it did not."""
        return sum(self._compensations) / len(self._compensations) if self._compensations else None

    @property
    def training(self) -> list[list[float]]:
        """At most `TESTS` points: environment steps, and the mean return of the training episodes since the last."""
        count = len(self._episodes)
        parts = min(count, TESTS)
        edges = [round(part * count / parts) for part in range(parts + 1)] if parts else []
        pieces = [self._episodes[start:end] for start, end in itertools.pairwise(edges)]
        return [[piece[-1][0], round(sum(value for _, value in piece) / len(piece), 3)] for piece in pieces]


__all__ = [
    *("RESULTS", "ROOT", "Job", "Record", "append", "complete", "done", "last_tests", "lines_of", "read"),
    *("tabled", "tell"),
]
