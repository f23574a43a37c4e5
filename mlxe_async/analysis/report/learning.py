"""Sections on learning: returns, tests, and what the algorithm measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlxe_async.analysis.report.chart import Line, chart, ends_of, middle_of
from mlxe_async.analysis.report.groups import Group, all_runs
from mlxe_async.analysis.report.markup import NOTHING, Markup, element, section
from mlxe_async.analysis.report.points import Points
from mlxe_async.analysis.report.scales import Axis, counts, times, values
from mlxe_async.analysis.report.story import Story
from mlxe_async.analysis.report.thinning import BUCKETS, XY, curve_of, finite

MOST_DOTS = 60  # values that a line joins; more are drawn by the line alone
STEPS, CLOCK = "environment steps", "time since the start"
ENDS = {"low": "5 % are below", "value": "median", "high": "95 % are below"}
_X = {STEPS: "env_steps", CLOCK: "seconds"}

Reader = Callable[[Story, str], XY]
"""Places and values of one run, by the name of the column for the places."""


def returns(groups: Sequence[Group]) -> Markup:
    """Returns of training episodes, over environment steps and over time."""

    def read(story: Story, x: str) -> XY:
        return finite(story.episodes[x], story.episodes["value"])

    charts = [curves("return", groups, read, across, smooth=True) for across in _X]
    return section(
        "Returns in training",
        "The line is a mean of the last episodes (a twentieth of a run's, at most 100). Around that of one run lie its "
        "least and greatest returns, or each as a point; around that of several seeds a 95 % bootstrap band.",
        pair(*charts),
    )


def tests(groups: Sequence[Group]) -> Markup:
    """Mean returns of tested versions, over the steps and the time until they were published or tested."""

    def read(story: Story, x: str) -> XY:
        return finite(story.tests[x], story.tests["mean"])

    charts = [curves("mean return of a test", groups, read, across) for across in _X]
    return section(
        "Tests",
        "Frozen versions play with the greedy policy. By environment steps a test stands where its version was "
        "published, by time where the test ended.",
        pair(*charts),
    )


def losses(groups: Sequence[Group]) -> Markup:
    """A chart of each quantity that the algorithms measured while learning."""
    names = sorted({name for run in all_runs(groups) for name in run.story.losses})
    charts = [_chart_of(name, groups, lambda story: story.losses) for name in names]
    return section(
        "What learning measured",
        "Losses and other quantities that the algorithm reports, means over each time it learned; a band goes from "
        "their least to their greatest. Values far apart have a logarithmic axis.",
        pair(*charts),
    )


def metrics(groups: Sequence[Group]) -> Markup:
    """A chart of each number that environments told of themselves."""
    names = sorted({name for run in all_runs(groups) for name in run.story.metrics})
    charts = [_chart_of(name, groups, lambda story: story.metrics) for name in names]
    return section(
        "What environments told",
        'Numbers of info["metrics"], means of about half a second of each executor.',
        pair(*charts),
    )


def quantiles(groups: Sequence[Group]) -> Markup:
    """A chart of the medians of actions, weights and gradients, and of the quantiles around each."""
    names = sorted({name for run in all_runs(groups) for name in run.story.quantiles})
    charts = [_spread_of(name, end, groups) for name in names for end in ENDS]
    return section(
        "Actions, weights and gradients",
        "Of all numbers of each, after some updates: the median, and what 5 % and 95 % of them are below.",
        pair(*charts),
    )


def _spread_of(name: str, end: str, groups: Sequence[Group]) -> Markup:
    def read(story: Story, x: str) -> XY:
        if name not in story.quantiles:
            return np.empty(0), np.empty(0)
        return finite(story.quantiles[name][x], story.quantiles[name][end])

    return curves(f"{name}, {ENDS[end]}", groups, read, STEPS)


def lengths(groups: Sequence[Group]) -> Markup:
    """The curve of the lengths of training episodes."""

    def read(story: Story, x: str) -> XY:
        return finite(story.episodes[x], story.episodes["length"])

    return curves("steps of an episode", groups, read, STEPS, smooth=True)


def pair(*figures: Markup) -> Markup:
    """Figures beside each other where there is room; empty without any."""
    shown = [figure for figure in figures if figure]
    return element("div", *shown, class_="figures") if shown else NOTHING


def curves(
    title: str,
    groups: Sequence[Group],
    read: Reader,
    across: str,
    *,
    smooth: bool = False,
    from_zero: bool = False,
    has_points: bool = True,
    note: str = "",
) -> Markup:
    """A chart with a curve for each settings, all on the same axes.

    Args:
        title: what is drawn.
        groups: whose.
        read: what of each run.
        across: `STEPS` or `CLOCK`.
        smooth: whether the line is a mean of values and those before them.
        from_zero: whether the upright axis begins at 0 in any case.
        has_points: whether values are drawn as points too, where they are few.
        note: how to read it.
    """
    found = [(one, [read(run.story, _X[across]) for run in one.runs]) for one in groups]
    ends = [float(x[-1]) for _, runs in found for x, _ in runs if len(x)]
    if not ends:
        return NOTHING
    last = max(*ends, *(_reached(run.story, across) for run in all_runs(groups)))
    most = (BUCKETS if smooth else MOST_DOTS) if has_points else 0
    lines = [line for one, runs in found if (line := _line(one, runs, last, most, smooth=smooth)) is not None]
    around = ends_of(lines)
    if around is None:
        return NOTHING
    up = values(*around, middle=middle_of(lines), from_zero=from_zero)
    return chart(title, lines, axis_across(across, last), up, across, note=note)


def axis_across(across: str, last: float) -> Axis:
    """The lower axis."""
    return times(last) if across == CLOCK else counts(last)


def _line(one: Group, runs: Sequence[XY], last: float, most_points: int, *, smooth: bool) -> Line | None:
    curve = curve_of(runs, last, smooth=smooth)
    if curve is None:
        return None
    told = [(x, y) for x, y in runs if len(x)]
    dots = told[0] if len(told) == 1 and len(told[0][0]) <= most_points else None
    return Line(one.title, one.style, curve, dots)


def _chart_of(name: str, groups: Sequence[Group], of: Callable[[Story], Mapping[str, Points]]) -> Markup:
    def read(story: Story, x: str) -> XY:
        known = of(story)
        if name not in known:
            return np.empty(0), np.empty(0)
        return finite(known[name][x], known[name]["value"])

    return curves(name, groups, read, STEPS)


def _reached(story: Story, across: str) -> float:
    reached = story.seconds if across == CLOCK else story.env_steps
    return reached if math.isfinite(reached) else 0.0
