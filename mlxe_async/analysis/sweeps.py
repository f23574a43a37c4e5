"""The trials of a sweep: what is told of one while it runs, and the words for what they came to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlxe_async.analysis.scores import mean_with_interval
from mlxe_async.analysis.statistics import FEWEST_RUNS, bootstrap, means
from mlxe_async.analysis.tables import Table, shown

State = Literal["complete", "pruned", "diverged", "failed", "refused", "running"]
SHOWN = 10


class Stretches:
    """Mean returns of the episodes that ended in each stretch of environment steps, as a log tells them.

    Args:
        interval: steps of a stretch.
    """

    def __init__(self, interval: int) -> None:
        self._interval, self._next = interval, interval
        self._returns: list[float] = []
        self._last: float | None = None

    def feed(self, event: Mapping[str, Any]) -> list[tuple[int, float]]:
        """Take note of an event; returns each stretch that is over by it: its last step, and its mean return.

        A stretch in which no episode ended has the value of the one before; without one it is not told.
        """
        told: list[tuple[int, float]] = []
        steps = event.get("env_steps")
        if type(steps) is not int:
            return told
        # An episode that ends exactly with a stretch belongs to it.
        while steps > self._next:
            if self._returns:
                self._last, self._returns = statistics.fmean(self._returns), []
            if self._last is not None:
                told.append((self._next, self._last))
            self._next += self._interval
        if event.get("event") == "episode_end" and (value := event.get("episode_return")) is not None:
            self._returns.append(float(value))
        return told


@dataclass(frozen=True)
class Trial:
    """The end of one trial.

    Args:
        number: counted from 0.
        values: of the keys that are searched.
        state: how it ended; only what is `complete` can be the best.
        score: of a complete one.
        reason: in words, of one that is not complete.
        env_steps: environment steps that it made.
        seconds: that it took.
    """

    number: int
    values: Mapping[str, Any]
    state: State
    score: float | None = None
    reason: str = ""
    env_steps: int = 0
    seconds: float = 0.0

    @property
    def how(self) -> str:
        """Its end in words."""
        if self.score is not None and self.state == "complete":
            return f"score {_told(self.score)}"
        return f"{self.state}{f' ({self.reason})' if self.reason else ''}"


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """Return the complete trial of the highest score, the earliest of equal ones."""
    complete = [one for one in trials if one.state == "complete" and one.score is not None]
    return max(complete, key=lambda one: (one.score or 0.0, -one.number), default=None)


@dataclass(frozen=True)
class Finalist:
    """A trial that ran again with further seeds.

    Args:
        trial: the first of its runs.
        scores: of all of them, the trial's own first; minus infinity for one that failed.
    """

    trial: Trial
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean score of its runs."""
        return statistics.fmean(self.scores)

    @property
    def how(self) -> str:
        """Its mean and each run, in words."""
        each = " / ".join(_told(one) if math.isfinite(one) else "failed" for one in self.scores)
        return f"trial {self.trial.number}: mean {_told(self.mean) if math.isfinite(self.mean) else '-'} of {each}"


def winner(finalists: Sequence[Finalist]) -> Finalist:
    """Return the finalist of the highest mean; of equal ones that of the higher trial's score, then the earlier one."""
    return max(finalists, key=lambda one: (one.mean, one.trial.score or 0.0, -one.trial.number))


def counted(trials: Sequence[Trial]) -> str:
    """Return how many trials ended how: `12 complete, 7 pruned, 1 diverged`."""
    states = [one.state for one in trials]
    kinds: Sequence[State] = ("complete", "pruned", "diverged", "failed", "refused", "running")
    return ", ".join(f"{states.count(kind)} {kind}" for kind in kinds if kind in states) or "none"


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials, the best first, then those that are not complete by their numbers."""
    return sorted(trials, key=lambda one: (one.state != "complete", -(one.score or 0.0), one.number))


def trial_table(trials: Sequence[Trial]) -> Table:
    """Return a row for each trial, the best first."""
    keys = list(dict.fromkeys(key for one in trials for key in one.values))
    rows = tuple(
        (
            str(one.number),
            _told(one.score) if one.score is not None else "-",
            one.state,
            f"{one.env_steps:,}",
            f"{one.seconds:.0f}",
            *(valued(one.values.get(key)) for key in keys),
            one.reason or "-",
        )
        for one in ranked(trials)
    )
    note = "Only a complete trial has a score. Pruned: ended early, its curve was among the worse ones."
    return Table("Trials", ("trial", "score", "ended", "env steps", "s", *keys, "why"), rows, note)


def valued(value: Any) -> str:
    """Return a value of a searched key as tables show it: five digits of a fraction."""
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Verdict:
    """The best beside the settings as they were, under the same fresh seeds.

    Args:
        seeds: those that both have.
        best: score of each with the best values; one that failed has none, and counts as -infinity.
        before: score of each with the settings as they were.
    """

    seeds: tuple[int, ...]
    best: tuple[float, ...]
    before: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Mean over the seeds of what is won; NaN where runs of both failed."""
        return statistics.fmean(self._differences) if self._is_known else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % bootstrap interval; None for too few seeds, see `FEWEST_RUNS`, or where a run failed."""
        if len(self.seeds) < FEWEST_RUNS or not all(map(math.isfinite, self._differences)):
            return None
        return bootstrap(self._differences, means)

    @property
    def is_better(self) -> bool:
        """True if the best reached more, in the mean of the seeds."""
        return self.difference > 0

    @property
    def _differences(self) -> list[float]:
        return [ours - theirs for ours, theirs in zip(self.best, self.before, strict=True)]

    @property
    def _is_known(self) -> bool:
        found = self._differences
        return not any(map(math.isnan, found)) and not {math.inf, -math.inf} <= {*found}

    def sentences(self) -> list[str]:
        """Return what was measured, and what follows, a sentence each."""
        told = [f"{_scores(self.best)} with the best values, {_scores(self.before)} with the settings as they were"]
        wins = sum(one > 0 for one in self._differences)
        by = _won(self.difference) if math.isfinite(self.difference) else "by runs that failed"
        interval, many = self.interval, len(self.seeds) > 1 and all(map(math.isfinite, self._differences))
        sure = doubt = ""
        if interval:
            sure = f" [95 % interval {_won(interval[0])} to {_won(interval[1])}]"
            doubt = (
                "; the interval holds 0: more seeds would tell"
                if interval[0] <= 0 <= interval[1] and interval[0] < interval[1]
                else ""
            )
        elif many:
            sure = f" [{_won(min(self._differences))} to {_won(max(self._differences))} by the seeds]"
            doubt = f"; an interval of 95 % takes fresh_seeds = {FEWEST_RUNS} or more"
        word = "better" if self.is_better else "NOT better"
        told.append(
            f"{word} than the settings as they were: {by}{sure}, higher with {wins} of {len(self.seeds)}{doubt}"
        )
        return told


def _told(score: float) -> str:
    return shown(score, "return")


def _won(difference: float) -> str:
    return f"{'-' if difference < 0 else '+'}{_told(abs(difference))}"


def _scores(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    failed = f", {len(values) - len(known)} failed" if len(known) < len(values) else ""
    if not known:
        return f"no score{failed}"
    mean, interval = mean_with_interval(known)
    if len(known) < FEWEST_RUNS:
        return f"{_told(mean)} ({_told(min(known))} to {_told(max(known))} by the seeds){failed}"
    return _told(mean) + (f" [{_told(interval[0])}, {_told(interval[1])}]" if interval else "") + failed
