"""A suite's results: normalised scores of algorithms over tasks, with intervals, and performance profiles.

As Agarwal et al. 2021 recommend (Deep reinforcement learning at the edge of the statistical precipice): a score is
normalised by the task's random play (0) and reference (1); the interquartile mean is over all runs of all tasks; runs
are resampled within each task (stratified bootstrap); a profile is the share of runs above each normalised score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlxe_async.analysis import scores
from mlxe_async.analysis.outcomes import Outcome
from mlxe_async.analysis.statistics import LEVEL, RESAMPLES, Doubles, iqms
from mlxe_async.analysis.tables import Table, number

POINTS = 101
_SEED = 20_260_102
Statistic = Callable[[Sequence[Doubles]], Doubles]
"""A number made of the normalised scores of each task, (..., runs of the task): one for each draw, (...)."""


@dataclass(frozen=True)
class Level:
    """Between which returns a task's scores are normalised.

    Args:
        random: return of random play: 0.
        reference: return that counts as 1.
        told: where the two come from, in words.
    """

    random: float
    reference: float
    told: str = ""

    def normalised(self, value: float) -> float:
        """A return between the two lies between 0 and 1; one beyond them does not."""
        return (value - self.random) / (self.reference - self.random)


@dataclass(frozen=True)
class Result:
    """One run of a suite.

    Args:
        seed: its seed.
        value: its score, a return; None if it failed or has none.
        reason: why it has none.
    """

    seed: int
    value: float | None
    reason: str = ""


Results = Mapping[str, Mapping[str, Sequence[Result]]]
"""Runs by algorithm, then by task."""


def result(one: Outcome, kind: str) -> Result:
    """Judge a run by its curve; one that failed has no score, whatever it reached before.

    Args:
        one: how it ended.
        kind: `final` or `area`, as of `scores.Score`.
    """
    if not one.completed:
        return Result(one.seed, None, one.reason)
    curve = scores.curve_of(one)
    if not curve:
        return Result(one.seed, None, f"no episode ended in {one.end.get('env_steps', 0):,.0f} steps")
    value = float(getattr(scores.score(curve), kind))
    return Result(one.seed, value) if math.isfinite(value) else Result(one.seed, None, "its score is not finite")


def normalised(runs: Mapping[str, Sequence[Result]], levels: Mapping[str, Level]) -> list[Doubles]:
    """Normalised scores of each task; a run without a score counts as random play, 0."""
    return [
        np.array([0.0 if one.value is None else levels[task].normalised(one.value) for one in of_task])
        for task, of_task in runs.items()
    ]


def iqm_of(tasks: Sequence[Doubles]) -> Doubles:
    """Interquartile mean over all runs of all tasks."""
    return iqms(np.concatenate(tasks, axis=-1))


def median_of(tasks: Sequence[Doubles]) -> Doubles:
    """Median over the tasks of the means of their runs."""
    found: Doubles = np.median([one.mean(axis=-1) for one in tasks], axis=0)
    return found


def mean_of(tasks: Sequence[Doubles]) -> Doubles:
    """Mean over the tasks of the means of their runs."""
    found: Doubles = np.mean([one.mean(axis=-1) for one in tasks], axis=0)
    return found


def optimality_gap(tasks: Sequence[Doubles]) -> Doubles:
    """By how much runs fall short of the reference, in the mean; what lies beyond it does not count. Less is better."""
    found: Doubles = np.mean([np.maximum(0.0, 1.0 - one).mean(axis=-1) for one in tasks], axis=0)
    return found


def resampled(tasks: Sequence[Doubles], resamples: int = RESAMPLES) -> list[Doubles]:
    """Draw runs with replacement within each task, as many as it has, (resamples, runs); from a fixed seed."""
    rng = np.random.default_rng(_SEED)
    return [one[rng.integers(len(one), size=(resamples, len(one)))] for one in tasks]


def with_interval(tasks: Sequence[Doubles], statistic: Statistic) -> tuple[float, tuple[float, float] | None]:
    """A statistic, and its 95 % stratified bootstrap interval; None where each task has one run, or none."""
    told = float(statistic(tasks))
    if all(len(one) < 2 for one in tasks):
        return told, None
    low, high = np.quantile(statistic(resampled(tasks)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return told, (float(low), float(high))


@dataclass(frozen=True)
class Profile:
    """Share of runs with a normalised score above each of some values; each task weighs the same.

    Args:
        at: the values (POINTS,), ascending.
        shares: above each.
        low: lower end of its 95 % stratified bootstrap interval.
        high: upper end.
    """

    at: Doubles
    shares: Doubles
    low: Doubles
    high: Doubles


def profiles(results: Results, levels: Mapping[str, Level]) -> dict[str, Profile]:
    """The performance profile of each algorithm, all at the same values."""
    found = {name: normalised(runs, levels) for name, runs in results.items()}
    everything = np.concatenate([one for tasks in found.values() for one in tasks])
    at = np.linspace(min(0.0, float(everything.min())), max(1.0, float(everything.max())), POINTS)

    def shares(tasks: Sequence[Doubles]) -> Doubles:
        above: Doubles = np.mean([(one[:, None] > at).mean(0) for one in tasks], axis=0)
        return above

    told = {}
    for name, tasks in found.items():
        drawn = np.array([shares(one) for one in zip(*resampled(tasks), strict=True)])
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        told[name] = Profile(at, shares(tasks), low, high)
    return told


def profile_rows(found: Mapping[str, Profile]) -> str:
    """The data of profiles as CSV: algorithm, score, share, low, high."""
    lines = ["algorithm,normalised_score,share_above,low,high"]
    for name, one in found.items():
        lines += [
            f"{name},{at:.6g},{share:.6g},{low:.6g},{high:.6g}"
            for at, share, low, high in zip(one.at, one.shares, one.low, one.high, strict=True)
        ]
    return "\n".join([*lines, ""])


def suite_table(results: Results, levels: Mapping[str, Level]) -> Table:
    """Return a row for each algorithm: normalised scores by task, and over all of them."""
    tasks = list(levels)
    rows = []
    for name, runs in results.items():
        scored = normalised(runs, levels)
        cells = [f"{one.mean():.3f}" for one in scored]
        over = [with_interval(scored, statistic) for statistic in (iqm_of, median_of, mean_of, optimality_gap)]
        failed = sum(one.value is None for of_task in runs.values() for one in of_task)
        rows.append((name, *cells, *map(_cell, over), f"{failed} of {sum(map(len, runs.values()))}"))
    note = (
        "Normalised scores: 0 is random play, 1 the reference. Tasks: mean of the runs. IQM: mean of the middle half "
        "of all runs of all tasks; median and mean: of the tasks' means; gap: how far runs fall short of 1, less is "
        "better. In brackets 95 % stratified bootstrap intervals, runs drawn within each task. A run that failed "
        "counts as 0. After Agarwal et al. 2021."
    )
    head = ("algorithm", *tasks, "IQM", "median", "mean", "gap", "failed")
    return Table("Normalised scores", head, tuple(rows), note)


def level_table(levels: Mapping[str, Level]) -> Table:
    """Return what 0 and 1 stand for in each task."""
    rows = tuple((task, number(one.random), number(one.reference), one.told) for task, one in levels.items())
    return Table("What 0 and 1 are", ("task", "random play: 0", "reference: 1", "from"), rows)


def return_table(results: Results, levels: Mapping[str, Level]) -> Table:
    """Return a row for each task and algorithm: returns as they are, a value for each seed."""
    rows = []
    for task in levels:
        for name, runs in results.items():
            of_task = runs[task]
            known = [one.value for one in of_task if one.value is not None]
            mean = number(math.fsum(known) / len(known)) if known else "-"
            values = ", ".join("failed" if one.value is None else number(one.value) for one in of_task)
            why = "; ".join(dict.fromkeys(one.reason for one in of_task if one.reason))
            rows.append((task, name, mean, values, why or "-"))
    return Table("Returns", ("task", "algorithm", "mean", "of each seed", "why failed"), tuple(rows))


def _cell(value: tuple[float, tuple[float, float] | None]) -> str:
    middle, interval = value
    return f"{middle:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
