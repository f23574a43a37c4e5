"""Sections on time: what each process spent it on, and how much was done in each second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxe_async.analysis.report.ending import advice
from mlxe_async.analysis.report.folder import RunRead
from mlxe_async.analysis.report.groups import Group, all_runs
from mlxe_async.analysis.report.learning import CLOCK, curves, pair
from mlxe_async.analysis.report.markup import NOTHING, Markup, details, element, join, section, table
from mlxe_async.analysis.report.points import known, mapping
from mlxe_async.analysis.report.shares import keys, stack
from mlxe_async.analysis.report.story import TAKING_IN, WAITING, Lane, Story
from mlxe_async.analysis.report.thinning import XY, rates

# Causes that have a colour of their own, in their order; others that a log tells follow, with colours in turn.
CAUSES = {"generate": 0, TAKING_IN: 5, "memorize": 3, "learn": 1, "publish": 4, "evaluate": 2, "checkpoint": 7}
FIRST_WAIT, WAITS, FILLS = 8, 4, 8
REST = "not told"
RATES = (
    ("env_steps", "environment steps per second"),
    ("updates", "updates per second"),
    ("learned", "rows per second"),
)
RATE_BUCKETS = 100
MOST_ADVICE = 6
_ORDER = ("executor", "memorizer", "learner", "evaluator")


@dataclass
class Spent:
    """The seconds of one process of the runs of one settings: lived in all, and by cause."""

    lived: float = 0.0
    causes: dict[str, float] = field(default_factory=dict)


def time_spent(groups: Sequence[Group]) -> Markup:
    """Draw each process's time by cause, as bars and as a table."""
    tables = [(one, spent_by(one.runs)) for one in groups]
    tables = [(one, spent) for one, spent in tables if spent]
    names = causes_of(spent for _, table_ in tables for spent in table_.values())
    styles = styles_of(names)
    parts = [part for one, spent in tables for part in _bars(one, spent, styles, is_alone=len(groups) == 1)]
    rows = [
        [f"{one.label}: {name}" if len(groups) > 1 else name, *_cells(spent, names)]
        for one, table_ in tables
        for name, spent in table_.items()
    ]
    said = [
        f"{run.name}: {told}" if len(all_runs(groups)) > 1 else told
        for run in all_runs(groups)
        if (told := advice(run))
    ]
    return section(
        "Where the time went",
        "Each bar is the life of a process. What it waited for is counted apart from what it did meanwhile; no line of "
        f'the log accounts for what is "{REST}": pauses between phases, and the start.',
        join(element("p", one) for one in said[:MOST_ADVICE]),
        keys([*names, REST], styles) if tables else NOTHING,
        *parts,
        details("Numbers", table(["process", *names, REST, "seconds lived"], rows, "Time by process and cause"))
        if rows
        else NOTHING,
        _cpu(groups),
    )


def speeds(groups: Sequence[Group]) -> Markup:
    """Steps, updates and rows per second, over time."""
    charts = [_rate(name, title, groups) for name, title in RATES]
    return section(
        "How fast it went", "The work of each phase is spread evenly over the time that it took.", pair(*charts)
    )


def spent_by(runs: Iterable[RunRead]) -> dict[str, Spent]:
    """Seconds by process and cause, the runs of one settings together: the table that bars are drawn from."""
    found: dict[Lane, Spent] = {}
    for run in runs:
        for lane, causes in run.story.lanes.items():
            spent = found.setdefault(lane, Spent())
            spent.lived += max(_lived(run.story, lane), sum(causes.values()))
            for cause, seconds in causes.items():
                spent.causes[cause] = spent.causes.get(cause, 0.0) + seconds
    return {_name(lane): found[lane] for lane in sorted(found, key=_place)}


def causes_of(spent: Iterable[Spent]) -> list[str]:
    """All causes that are told, those with a place of their own first, then others, what was waited for last."""
    found = {cause for one in spent for cause, seconds in one.causes.items() if seconds > 0}
    order = list(CAUSES)
    return sorted(
        found, key=lambda cause: (cause.startswith(WAITING), order.index(cause) if cause in order else 99, cause)
    )


def styles_of(names: Sequence[str]) -> dict[str, int]:
    """The colour of each cause."""
    waits = [name for name in names if name.startswith(WAITING)]
    others = [name for name in names if name not in CAUSES and name not in waits]
    return {
        **CAUSES,
        **{name: number % FILLS for number, name in enumerate(others, 6)},
        **{name: FIRST_WAIT + number % WAITS for number, name in enumerate(waits)},
        REST: -1,
    }


def _bars(one: Group, table_: dict[str, Spent], styles: dict[str, int], *, is_alone: bool) -> Iterable[Markup]:
    if not is_alone:
        yield element("h3", one.title)
    for name, spent in table_.items():
        parts = {cause: spent.causes[cause] for cause in causes_of([spent])}
        yield stack(name, {**parts, REST: _rest(spent)}, styles)


def _cells(spent: Spent, names: Sequence[str]) -> list[str]:
    told = [*(spent.causes.get(name, 0.0) for name in names), _rest(spent)]
    shares = [f"{100 * seconds / spent.lived:.1f} %" if spent.lived else "" for seconds in told]
    return [*shares, f"{spent.lived:,.1f}"]


def _rest(spent: Spent) -> float:
    return max(0.0, spent.lived - sum(spent.causes.values()))


def _lived(story: Story, lane: Lane) -> float:
    """Seconds that a role's process lived; those of all the run's processes if it has none of its own."""
    lives = story.lives.get(lane) or [life for lives in story.lives.values() for life in lives]
    if not lives:
        return story.seconds
    spans = [(born, story.seconds if died is None else died) for born, died in lives]
    if lane in story.lives:
        return sum(max(0.0, died - born) for born, died in spans)
    return max(0.0, max(died for _, died in spans) - min(born for born, _ in spans))


def _place(lane: Lane) -> tuple[int, str, int]:
    role, index = lane
    return (_ORDER.index(role) if role in _ORDER else 99), role, -1 if index is None else index


def _name(lane: Lane) -> str:
    role, index = lane
    return role if index is None else f"{role} {index}"


def _rate(name: str, title: str, groups: Sequence[Group]) -> Markup:
    last = max((run.story.seconds for run in all_runs(groups)), default=0.0)
    edges = np.linspace(0.0, max(last, 1e-3), RATE_BUCKETS + 1)
    middles = (edges[1:] + edges[:-1]) / 2

    def read(story: Story, _: str) -> XY:
        work = story.work[name]
        if not len(work):
            return np.empty(0), np.empty(0)
        is_lived = middles <= max(story.seconds, middles[0])
        return middles[is_lived], rates(work["start"], work["end"], work["amount"], edges)[is_lived]

    note = "learned from" if name == "learned" else ""
    return curves(title, groups, read, CLOCK, from_zero=True, has_points=False, note=note)


def _cpu(groups: Sequence[Group]) -> Markup:
    """CPU seconds as `status.json` has them, of runs that are not one of many."""
    rows = []
    for run in all_runs(groups):
        used = mapping(run.status.get("cpu_seconds"))
        lasted = known(run.status, "seconds") or 0.0
        told = [(name, seconds) for name in sorted(used) if (seconds := known(used, name)) is not None]
        whose = f"{run.name}: " if len(all_runs(groups)) > 1 else ""
        rows += [
            [f"{whose}{name}", f"{seconds:,.1f}", f"{100 * seconds / lasted:.0f} %" if lasted > 0 else ""]
            for name, seconds in told
        ]
    if not rows:
        return NOTHING
    return details("CPU seconds", table(["process", "CPU seconds", "of a core"], rows, "CPU seconds of each process"))
