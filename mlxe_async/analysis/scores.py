"""How well runs did at tasks that are never solved: what they came to, how fast, and how sure that is.

Of each run the tests count, greedy games of frozen versions, by the environment steps at which a version was published;
where nothing was tested, the returns of training. The highest test is told because others tell it: as the luckiest of
many games it says little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlxe_async.analysis import breakout_study
from mlxe_async.analysis.outcomes import Groups, Outcome
from mlxe_async.analysis.statistics import bootstrap, means, median

FINAL_SHARE = 0.1
RECENT_TESTS = 3


@dataclass(frozen=True)
class Score:
    """What the curve of one run comes to.

    Args:
        final: mean of the tests in the last tenth of its steps.
        highest: of all tests.
        area: under the curve, over its steps: the mean return on the way. Each test stands for the steps since the one
            before it.
        reached: for each threshold the steps at which the mean of three tests in a row first was as high; infinity if
            it never was.
    """

    final: float
    highest: float
    area: float
    reached: tuple[float, ...] = ()


def score(curve: Sequence[Sequence[float]], thresholds: Sequence[float] = ()) -> Score:
    """Judge a curve of points (environment steps, return), in any order.

    Raises:
        ValueError: it has no point.
    """
    if not len(curve):
        raise ValueError("score: expected a curve of at least one point, got none")
    points = np.asarray(sorted(curve, key=lambda point: point[0]), np.float64)
    steps, returns = points[:, 0], points[:, 1]
    last = steps[-1]
    final = returns[steps > (1 - FINAL_SHARE) * last] if last > 0 else returns
    widths = np.diff(steps, prepend=0.0)
    area = (widths * returns).sum() / last if last > 0 else returns.mean()
    ends = range(RECENT_TESTS, len(returns) + 1)
    recent = [(float(steps[end - 1]), math.fsum(returns[end - RECENT_TESTS : end]) / RECENT_TESTS) for end in ends]
    reached = [next((at for at, mean in recent if mean >= threshold), math.inf) for threshold in thresholds]
    return Score(float(final.mean()), float(returns.max()), float(area), tuple(reached))


def curve_of(one: Outcome) -> list[tuple[float, float]]:
    """Points (environment steps, return) of a run's tests; of its training where it has none."""
    if one.test_curve:
        return [(point[0], point[1]) for point in one.test_curve]
    return [(point[1], point[3]) for point in one.curve]


def thresholds_for(groups: Groups, asked: Sequence[float] = ()) -> tuple[float, ...]:
    """Those that were asked for; on Breakout, if none were, those of the published study."""
    return tuple(asked) or (breakout_study.THRESHOLDS if is_breakout(groups) else ())


def is_breakout(groups: Groups) -> bool:
    """Return whether all runs played Breakout."""
    tasks = {str(one.facts.get("env")) for runs in groups.values() for one in runs if one.facts}
    return bool(tasks) and tasks <= set(breakout_study.ENVIRONMENTS)


def never_judged(groups: Groups) -> Mapping[str, Sequence[Outcome]]:
    """The settings whose versions no rule judges, and that left a curve."""
    return {
        name: runs
        for name, runs in groups.items()
        if not any(one.tested for one in runs if one.facts) and any(curve_of(one) for one in runs)
    }


def mean_with_interval(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Mean of values of independent runs, and its 95 % bootstrap interval; None for that of a single one."""
    mean = math.fsum(values) / len(values)
    return mean, bootstrap(values, means) if len(values) > 1 else None


def median_with_interval(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Median of values of which infinity is the worst, and its 95 % bootstrap interval."""
    return median(values), bootstrap(values) if len(values) > 1 else None
