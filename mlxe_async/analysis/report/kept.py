"""Runs as a study keeps them: by their folders, or by outcomes alone, each of which is told as a short story."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlxe_async.analysis import study
from mlxe_async.analysis.outcomes import Outcome
from mlxe_async.analysis.report.chart import Line, chart
from mlxe_async.analysis.report.folder import RunRead, read_run
from mlxe_async.analysis.report.learning import pair
from mlxe_async.analysis.report.markup import NOTHING, Markup, details, element, section, table
from mlxe_async.analysis.report.scales import counts, times, values
from mlxe_async.analysis.report.story import Story
from mlxe_async.analysis.report.thinning import Curve
from mlxe_async.analysis.tables import Table, all_tables, solved_means, survival
from mlxe_async.storage.run_folder import LOG
from mlxe_async.storage.safe_text import visible

OF_A_STUDY = "only what a study keeps of it was there to be read, not its folder"


def read_study(path: Path) -> tuple[list[RunRead], list[Markup]]:
    """The runs of a study's folder, and the tables that compare makes of them.

    Raises:
        RunFailed: a file of the study is damaged.
    """
    outcomes = study.told_outcomes(path)
    runs = [_run(path, one) for one in outcomes]
    stored = study.stored_baselines(path)
    plan = study.read_plan(path) if study.is_study(path) else study.Plan((), ())
    groups = study.group(outcomes)
    tables = all_tables(groups, stored[1] if stored else (), plan.varied(), plan.thresholds)
    told = [section(f"How long until it is solved: {visible(path.name, 80)}", "", _survival(groups))]
    return runs, [*told, *map(_shown, tables)]


def _run(path: Path, one: Outcome) -> RunRead:
    folder = path / study.RUNS / one.run
    is_plain = bool(one.run) and one.run not in (".", "..") and "/" not in one.run
    return read_run(folder) if is_plain and (folder / LOG).is_file() else of_outcome(one)


def of_outcome(one: Outcome) -> RunRead:
    """A run of which nothing but its outcome is left, as if it had been read from a shorter log."""
    story, facts = Story(), one.facts
    story.lines = 1
    story.start = {"seed": one.seed, **{key: facts.get(key) for key in ("algorithm", "env", "schedule")}}
    for point in one.curve:
        _, steps, seconds, value = (_number(part) for part in (*point, None, None, None, None)[:4])
        story.episodes.add(seconds, steps, value, math.nan)
    for point in one.test_curve:
        steps, value = (_number(part) for part in (*point, None, None)[:2])
        story.tests.add(math.nan, steps, math.nan, value, math.nan, math.nan)
    ended = {key: _number(one.end.get(key)) for key in ("episodes", "env_steps", "updates", "seconds")}
    story.episodes_ended, story.env_steps, story.updates, story.seconds = ended.values()
    story.seconds = story.seconds if math.isfinite(story.seconds) else 0.0
    story.end = {**ended, "reason": one.reason, "exit_code": 0 if one.completed else 3, "solved": one.solved}
    if one.solved:
        at = {"env_steps": one.env_steps, "updates": one.updates, "seconds": one.seconds_to_publication}
        story.solved = {"event": "solved", **at}
    kept = {"versions": facts.get("versions"), "host": facts.get("host"), "seed": one.seed}
    settings = {"run": {"name": one.name}, "digest of all settings": one.digest}
    name = one.run or f"{one.name}, seed {one.seed}"
    return RunRead(
        name,
        story,
        is_alive=False,
        settings=settings,
        about=kept,
        status={},
        notes=(OF_A_STUDY,),
        final_return=one.final_return,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _shown(one: Table) -> Markup:
    note = element("p", one.note, class_="note") if one.note else NOTHING
    told = table(one.head, one.rows, one.title)
    if len(one.rows) > 12:
        return section(one.title, "", details(f"{len(one.rows)} rows", told, note))
    return section(one.title, "", told, note)


def _survival(groups: dict[str, list[Outcome]]) -> Markup:
    """Share of runs not solved yet, over episodes and over time."""
    shown = {name: runs for name, runs in groups.items() if any(not one.failed and one.tested for one in runs)}
    if not shown:
        return NOTHING
    every = [one for runs in shown.values() for one in runs]
    charts = []
    for quantity, label, axis in (("episodes", "episodes", counts), ("seconds_to_publication", "time", times)):
        lines = [_steps(name, style, runs, quantity) for style, (name, runs) in enumerate(shown.items())]
        last = max(float(line.curve.x[-1]) for line in lines)
        charts.append(
            chart("share not solved yet", lines, axis(last), values(0.0, 1.0, from_zero=True), label, steps=True)
        )
    note = element("p", f"Kaplan-Meier estimate. {solved_means(every)}.", class_="note")
    return element("div", note, pair(*charts))


def _steps(name: str, style: int, runs: Sequence[Outcome], quantity: str) -> Line:
    curve = survival(runs, quantity)
    end = max([0.0, *curve.times, *curve.censored])
    shares = [1.0, *curve.shares]
    return Line(
        f"{name} ({len(runs)})", style, Curve(np.array([0.0, *curve.times, end]), np.array([*shares, shares[-1]]))
    )
