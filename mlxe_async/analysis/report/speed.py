"""Sections on time: what each process spent it on, and how much was done in each second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxe_async.analysis.report.ending import busy
from mlxe_async.analysis.report.folder import RunRead
from mlxe_async.analysis.report.groups import Group, all_runs
from mlxe_async.analysis.report.learning import CLOCK, curves, pair
from mlxe_async.analysis.report.markup import NOTHING, Markup, details, element, join, section, table
from mlxe_async.analysis.report.points import known, mapping
from mlxe_async.analysis.report.shares import keys, stack
from mlxe_async.analysis.report.story import TAKING_IN, WAITING, Lane, Story
from mlxe_async.analysis.report.thinning import XY, rates

# Causes that have a colour of their own, in their order; others that a log tells follow, with colours in turn.
CAUSES = {
    "generate": 0,
    "acting": 0,
    "stepping": 5,
    "resetting": 6,
    TAKING_IN: 5,
    "drawing": 3,
    "memorize": 3,
    "gathering": 5,
    "learn": 1,
    "updating": 1,
    "publish": 4,
    "publishing": 4,
    "evaluate": 2,
    "testing": 2,
    "checkpoint": 7,
    "keeping": 7,
    "saving": 6,
    "working": 10,
    "starting": 11,
}
FIRST_WAIT, WAITS, FILLS = 8, 4, 8
REST = "not told"
RATES = (
    ("env_steps", "environment steps per second"),
    ("updates", "updates per second"),
    ("learned", "rows per second"),
)
RATE_BUCKETS = 100
MOST_ADVICE = 6
QUANTILES = (0.5, 0.9, 0.99)
_ORDER = ("executor", "memorizer", "learner", "evaluator")
_PROCESSES = {"mlxe-exe": 0, "mlxe-mem": 1, "mlxe-lrn": 2, "mlxe-eval": 3}


@dataclass
class Spent:
    """The seconds of one process of the runs of one settings: lived in all, and by cause."""

    lived: float = 0.0
    causes: dict[str, float] = field(default_factory=dict)

    def add(self, causes: Mapping[str, float], lived: float = 0.0) -> None:
        """Add seconds by cause, of a process that lived at least as long as these take."""
        self.lived += max(lived, sum(causes.values()))
        for cause, seconds in causes.items():
            self.causes[cause] = self.causes.get(cause, 0.0) + seconds


Table = dict[str, Spent]
"""The time of each process, by its name. A new process or cause becomes a bar or a part like any other."""


def time_spent(groups: Sequence[Group]) -> Markup:
    """Draw each process's time by cause, as bars and as tables; by phases where the log tells nothing finer."""
    finest = [(one, by_mode(one.runs) or by_phase(one.runs)) for one in groups]
    finest = [(one, spent) for one, spent in finest if spent]
    styles = styles_of(_causes(finest))
    bars = [bar for one, spent in finest for bar in _bars(one, spent, styles, is_alone=len(groups) == 1)]
    runs = all_runs(groups)
    said = [f"{run.name}: {told}" if len(runs) > 1 else told for run in runs if (told := busy(run))]
    phases = [(one, by_phase(one.runs)) for one in groups]
    return section(
        "Where the time went",
        "Each bar is the life of a process. What it waited for is counted apart from what it did meanwhile; no line of "
        f'the log accounts for what is "{REST}": pauses between phases, and the start.',
        join(element("p", one) for one in said[:MOST_ADVICE]),
        keys([*_causes(finest), REST], styles) if finest else NOTHING,
        *bars,
        _numbers("Numbers", finest),
        _numbers("By phase", phases) if finest != phases else NOTHING,
        _latencies(groups),
        _cpu(groups),
    )


def speeds(groups: Sequence[Group]) -> Markup:
    """Steps, updates and rows per second, over time."""
    charts = [_rate(name, title, groups) for name, title in RATES]
    return section(
        "How fast it went", "The work of each phase is spread evenly over the time that it took.", pair(*charts)
    )


def by_phase(runs: Iterable[RunRead]) -> Table:
    """Seconds by process and phase, with waits apart, of runs together."""
    found: dict[Lane, Spent] = {}
    for run in runs:
        for lane, causes in run.story.lanes.items():
            found.setdefault(lane, Spent()).add(causes, _lived(run.story, lane))
    return {_name(lane): found[lane] for lane in sorted(found, key=_place)}


def by_mode(runs: Iterable[RunRead]) -> Table:
    """Seconds by process and what it did or waited for, of runs together; empty where the logs do not tell it."""
    found: Table = {}
    for run in runs:
        for process, modes in run.story.modes.items():
            found.setdefault(process, Spent()).add(modes)
    return dict(sorted(found.items(), key=lambda item: (_PROCESSES.get(item[0].rstrip("-0123456789"), 99), item[0])))


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


def _bars(one: Group, spent_by: Table, styles: dict[str, int], *, is_alone: bool) -> Iterable[Markup]:
    if not is_alone:
        yield element("h3", one.title)
    for name, spent in spent_by.items():
        parts = {cause: spent.causes[cause] for cause in causes_of([spent])}
        yield stack(name, {**parts, REST: _rest(spent)}, styles)


def _causes(tables: Iterable[tuple[Group, Table]]) -> list[str]:
    return causes_of(spent for _, one in tables for spent in one.values())


def _numbers(title: str, tables: Sequence[tuple[Group, Table]]) -> Markup:
    names = _causes(tables)
    rows = [
        [f"{one.label}: {name}" if len(tables) > 1 else name, *_cells(spent, names)]
        for one, spent_by in tables
        for name, spent in spent_by.items()
    ]
    if not rows:
        return NOTHING
    head = ["process", *names, REST, "seconds lived"]
    return details(title, table(head, rows, f"Time by process and cause: {title}"))


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
    spans = [(born, story.seconds if died is None else min(died, story.seconds)) for born, died in lives]
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


def _latencies(groups: Sequence[Group]) -> Markup:
    """Draw up a table of the seconds of single calls and updates, of runs of the same settings together."""
    rows = []
    for one in groups:
        spells: dict[tuple[str, str], Counter[int]] = {}
        for key, counts in ((key, counts) for run in one.runs for key, counts in run.story.spells.items()):
            spells.setdefault(key, Counter()).update(counts)
        for (process, mode), counts in sorted(spells.items()):
            name = f"{one.label}: {process}" if len(groups) > 1 else process
            rows.append([f"{name} {mode}", f"{counts.total():,}", *(_quantile(counts, share) for share in QUANTILES)])
    if not rows:
        return NOTHING
    head = ["process and mode", "how often", *(f"{100 * share:g} % shorter than" for share in QUANTILES)]
    return details(
        "Latencies", table(head, rows, "How long a call of the policy or the environments, or an update took")
    )


def _quantile(counts: Counter[int], share: float) -> str:
    below, rank = 0, share * counts.total()
    for end, count in sorted(counts.items()):
        below += count
        if below >= rank:
            return f"{end / 1e6:.3g} ms" if end < 1e9 else f"{end / 1e9:.3g} s"
    return ""


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
