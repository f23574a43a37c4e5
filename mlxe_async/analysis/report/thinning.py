"""Curves of few points from columns of many: means and extremes of buckets, so that no peak is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlxe_async.analysis.report.points import Doubles
from mlxe_async.analysis.statistics import band

BUCKETS = 160
SHORTEST_S = 1e-6
MOST_SMOOTHED = 100

XY = tuple[Doubles, Doubles]


@dataclass(frozen=True)
class Curve:
    """A line to draw, and what lies around it.

    Args:
        x: places, ascending.
        y: the line.
        low: lower end of the band; None without one.
        high: upper end.
    """

    x: Doubles
    y: Doubles
    low: Doubles | None = None
    high: Doubles | None = None


def finite(x: Doubles, y: Doubles) -> XY:
    """The points of which both numbers are known, by x."""
    is_known = np.isfinite(x) & np.isfinite(y)
    x, y = x[is_known], y[is_known]
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def smoothed(y: Doubles) -> Doubles:
    """Mean of each value and those before it: of a twentieth of all, at most a hundred."""
    if not len(y):
        return y
    window = int(np.clip(len(y) // 20, 1, MOST_SMOOTHED))
    sums = np.concatenate([[0.0], np.cumsum(y)])
    ends = np.arange(1, len(y) + 1)
    starts = np.maximum(0, ends - window)
    means: Doubles = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def thinned(x: Doubles, y: Doubles, last: float, line: Doubles | None = None) -> Curve:
    """One run's values as a curve of at most `BUCKETS` points.

    Args:
        x: places, ascending, from 0 on.
        y: values; of each bucket the band goes from the least to the greatest.
        last: where the axis ends.
        line: what is drawn as the line, a value each; None: the values themselves, by their mean in a bucket.

    Returns:
        The line without a band where there are so few values that each can be drawn.
    """
    line = y if line is None else line
    if len(x) <= BUCKETS:
        return Curve(x, line)
    edges = np.linspace(0.0, max(last, float(x[-1])), BUCKETS + 1)
    bucket = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, BUCKETS - 1)
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(bucket)) + 1])
    counts = np.diff(np.append(firsts, len(x)))
    return Curve(
        np.add.reduceat(x, firsts) / counts,
        np.add.reduceat(line, firsts) / counts,
        np.minimum.reduceat(y, firsts),
        np.maximum.reduceat(y, firsts),
    )


def curve_of(runs: Sequence[XY], last: float, *, smooth: bool = False) -> Curve | None:
    """The curve of the runs of one settings.

    Args:
        runs: places and values of each, known and ascending.
        last: where the axis ends.
        smooth: whether the line is a mean of values and those before them.

    Returns:
        Of one run the mean and the extremes of each bucket; of several the mean of the runs with its 95 % bootstrap
        band, between points the value before, after a run's end its last. None without any point.
    """
    runs = [(x, y) for x, y in runs if len(x)]
    if not runs:
        return None
    lines = [smoothed(y) if smooth else y for _, y in runs]
    if len(runs) == 1:
        (x, y), line = runs[0], lines[0]
        return thinned(x, y, last, line if smooth else None)
    ends = min(last, max(float(x[-1]) for x, _ in runs))
    grid = np.linspace(0.0, ends, BUCKETS)
    means = [thinned(x, line, last) for (x, _), line in zip(runs, lines, strict=True)]
    rows = [one.y[np.clip(np.searchsorted(one.x, grid, side="right") - 1, 0, None)] for one in means]
    middle, low, high = band(rows)
    from_first = grid >= min(float(x[0]) for x, _ in runs)
    return Curve(grid[from_first], middle[from_first], low[from_first], high[from_first])


def rates(start: Doubles, end: Doubles, amount: Doubles, edges: Doubles) -> Doubles:
    """Work per second between edges; the work of a phase is spread evenly over its time."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    span = np.maximum(end - start, SHORTEST_S)
    times = np.concatenate([start, start + span])
    order = np.argsort(times, kind="stable")
    slopes = np.cumsum(np.concatenate([amount / span, -amount / span])[order])
    times = times[order]
    done = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(times))])
    per_bucket = np.diff(np.interp(edges, times, done, left=0.0, right=done[-1]))
    speeds: Doubles = np.maximum(0.0, per_bucket) / np.diff(edges)
    return speeds


def ages(taken_at: Doubles, rows: Doubles, now: Doubles, back: Doubles) -> Doubles:
    """Seconds since the row was taken in that is `back` rows before the newest, at each of some moments.

    Args:
        taken_at: when rows were taken in.
        rows: how many each time.
        now: the moments.
        back: how many rows before the newest.

    Returns:
        Seconds; NaN where the log does not reach back so far.
    """
    if not len(taken_at):
        return np.full(len(now), np.nan)
    order = np.argsort(taken_at, kind="stable")
    times = np.concatenate([[taken_at[order][0]], taken_at[order]])
    total = np.concatenate([[0.0], np.cumsum(np.maximum(rows[order], 0.0))])
    newest = np.interp(now, times, total)
    then = np.interp(newest - back, total, times)
    return np.where(newest - back >= 0, np.maximum(0.0, now - then), np.nan)
