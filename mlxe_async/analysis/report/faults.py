"""The section on faults and restarts: a time line with a row for each kind, and what was said of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlxe_async.analysis.report.chart import WIDTH, framed
from mlxe_async.analysis.report.ending import amount, moment, state_of
from mlxe_async.analysis.report.folder import RunRead
from mlxe_async.analysis.report.groups import Group, all_runs
from mlxe_async.analysis.report.happenings import KINDS
from mlxe_async.analysis.report.markup import NOTHING, Markup, details, element, join, section, table
from mlxe_async.analysis.report.scales import times

ROW_HEIGHT = 40
BUCKETS = 400
_FAULTS = {kind for kind, is_fault in KINDS.values() if is_fault}
_ORDER = [*dict.fromkeys(kind for kind, _ in KINDS.values()), "planned restart"]


def faults(groups: Sequence[Group]) -> Markup:
    """Faults, restarts and other marks of each run that has any, on one time axis."""
    runs = all_runs(groups)
    last = max((run.story.seconds for run in runs), default=0.0)
    told = [_of_run(run, last, is_alone=len(runs) == 1) for run in runs if len(run.story.happenings) or _died(run)]
    if not told:
        return section("Faults and restarts", "", element("p", "None: the log tells of no fault and no restart."))
    quiet = len(runs) - len(told)
    rest = element("p", f"Of {quiet} more runs the log tells nothing of the kind.") if quiet else NOTHING
    return section(
        "Faults and restarts", "A tick is one event or several so close that they cannot be told apart.", *told, rest
    )


def _of_run(run: RunRead, last: float, *, is_alone: bool) -> Markup:
    happenings = run.story.happenings
    marks = {kind: np.array(happenings.times[kind]) for kind in _ORDER if kind in happenings.times}
    if _died(run):
        marks["end of the log"] = np.array([run.story.seconds])
    rows = [[amount(one.at), moment(one.clock), one.kind, one.who, one.said] for one in happenings.told]
    dropped = len(happenings) - len(rows)
    note = (
        element("p", f"{dropped:,} events between the first and the last ones are not listed.") if dropped else NOTHING
    )
    head = ["after", "at", "what", "who", "in words"]
    folded = (
        details(f"All in words ({len(rows):,})", table(head, rows, "Events", numeric=False), note) if rows else NOTHING
    )
    title = NOTHING if is_alone else element("h3", run.name)
    return join([title, _line_of(run, marks, last), folded])


def _line_of(run: RunRead, marks: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]], last: float) -> Markup:
    across = times(last)
    drawn = []
    for kind, at in marks.items():
        places = sorted({round(across.at(float(second)) * BUCKETS) / BUCKETS for second in at})
        ticks = "".join(f"M{WIDTH * place:.1f} 6V{ROW_HEIGHT - 6}" for place in places)
        said = f"{kind}: {run.story.happenings.counts[kind] or len(at):,}"
        is_fault = kind in _FAULTS or kind == "end of the log"
        picture = element(
            "svg",
            element("title", said),
            element("path", d=f"M0 {ROW_HEIGHT // 2}H{WIDTH}", class_="mesh"),
            element("path", d=ticks, class_="tick bad" if is_fault else "tick"),
            viewBox=f"0 0 {WIDTH} {ROW_HEIGHT}",
            preserveAspectRatio="none",
            role="img",
            aria_label=f"{run.name}, {said}, first after {amount(float(at.min()))}",
        )
        drawn.append(element("div", element("span", said), picture, class_="stacked"))
    below = framed(
        element("svg", viewBox="0 0 1 1", aria_hidden="true"), across, None, f"time since the start ({across.unit})"
    )
    return element("figure", *drawn, element("div", element("span"), below, class_="stacked"))


def _died(run: RunRead) -> bool:
    return state_of(run) in ("died", "unknown") and run.story.lines > 0
