"""The pictures of a suite: performance profiles of its algorithms, and learning curves of each task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mlxe_async.analysis.outcomes import Groups
from mlxe_async.analysis.pictures import Picture, colours, drawing, learning_curves, legend, picture_of
from mlxe_async.analysis.suites import Profile


def profile_picture(profiles: Mapping[str, Profile], runs: Mapping[str, int]) -> Picture:
    """Share of runs above each normalised score, a line for each algorithm.

    Args:
        profiles: of each algorithm.
        runs: how many runs each has.
    """
    with drawing(7.4, 4.2) as (figure, axes):
        ax = axes[0][0]
        for colour, one in zip(colours(), profiles.values(), strict=False):
            ax.plot(one.at, one.shares, color=colour, linewidth=1.8)
            ax.fill_between(one.at, one.low, one.high, color=colour, alpha=0.2, linewidth=0)
        ax.set_xlabel("normalised score: 0 is random play, 1 the reference")
        ax.set_ylabel("share of runs above it")
        ax.set_ylim(-0.02, 1.02)
        legend(figure, {name: range(runs[name]) for name in profiles})
        caption = (
            "Share of an algorithm's runs with a higher normalised score, each task weighing the same, with 95 % "
            "stratified bootstrap bands. A line above another is better at that score."
        )
        return picture_of(figure, "profile", "Performance profiles", caption)


def task_pictures(task: str, groups: Groups) -> list[Picture]:
    """Learning curves of one task's algorithms; none where no run left one."""
    picture = learning_curves(groups)
    return [] if picture is None else [dataclasses.replace(picture, name=f"learning-{task}", title=f"Learning: {task}")]
