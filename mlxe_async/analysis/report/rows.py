"""Sections on rows: how old they are when they are learned from, how old the memory's are, how long episodes last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlxe_async.analysis.report.groups import Group
from mlxe_async.analysis.report.learning import CLOCK, STEPS, curves, lengths, pair
from mlxe_async.analysis.report.markup import Markup, section
from mlxe_async.analysis.report.points import Doubles
from mlxe_async.analysis.report.shares import Sample, histogram
from mlxe_async.analysis.report.story import Story
from mlxe_async.analysis.report.thinning import XY, ages, finite


def policy_lag(groups: Sequence[Group]) -> Markup:
    """Draw the policy lag of the rows that were learned from."""

    def mean(story: Story, x: str) -> XY:
        return finite(story.learning[x], story.learning["lag_mean"])

    def most(story: Story, x: str) -> XY:
        return finite(story.learning[x], story.learning["lag_max"])

    return section(
        "Policy lag",
        "Versions that the learner was ahead of the rows that it learned from. The log tells the mean and the largest "
        "lag each time it learns: the histogram counts rows by that mean.",
        pair(
            histogram("rows by policy lag", _samples(groups, "learning", "lag_mean", "rows"), "versions", whole=True),
            curves("mean policy lag", groups, mean, STEPS, from_zero=True),
            curves("largest policy lag", groups, most, STEPS, from_zero=True),
        ),
    )


def memory(groups: Sequence[Group]) -> Markup:
    """Draw the memory's fill, and the age of its rows."""

    def full(story: Story, x: str) -> XY:
        with np.errstate(divide="ignore", invalid="ignore"):
            return finite(story.ledger[x], 100 * story.ledger["kept"] / story.ledger["capacity"])

    def oldest(story: Story, x: str) -> XY:
        return finite(story.ledger[x], _age(story, 1.0))

    def middle(story: Story, x: str) -> XY:
        return finite(story.ledger[x], _age(story, 0.5))

    def backlog(story: Story, x: str) -> XY:
        return finite(story.ledger[x], story.ledger["backlog"])

    return section(
        "Memory",
        "From the accounts of rows. Ages are those of a memory whose oldest rows go first: the time since the row was "
        "taken in that is as many rows before the newest as the memory holds, and half as many.",
        pair(
            curves("age of the oldest row, seconds", groups, oldest, CLOCK, from_zero=True),
            curves("median age of the rows, seconds", groups, middle, CLOCK, from_zero=True),
            curves("full, %", groups, full, CLOCK, from_zero=True),
            curves("rows waiting in lanes", groups, backlog, CLOCK, from_zero=True),
        ),
    )


def episodes(groups: Sequence[Group]) -> Markup:
    """Draw the lengths of training episodes."""
    samples = _samples(groups, "episodes", "length", None)
    return section(
        "Episode lengths",
        "Steps of training episodes, each counted once; the line is a mean of the last ones, as for returns.",
        pair(histogram("episodes by length", samples, "steps", whole=True), lengths(groups)),
    )


def _samples(groups: Sequence[Group], where: str, what: str, weight: str | None) -> list[Sample]:
    found = []
    for one in groups:
        points = [getattr(run.story, where) for run in one.runs]
        values = np.concatenate([each[what] for each in points])
        weights = np.ones(len(values)) if weight is None else np.concatenate([each[weight] for each in points])
        found.append(Sample(one.title, one.style, values, weights))
    return found


def _age(story: Story, share: float) -> Doubles:
    taken = story.work["taken"]
    return ages(taken["end"], taken["amount"], story.ledger["seconds"], share * story.ledger["kept"])
