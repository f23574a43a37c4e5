"""Sections on the runs themselves: results, settings and their differences, machine, versions, and what was read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from mlxe_async.analysis.report.ending import (
    amount,
    best_test,
    count,
    last_returns,
    moment,
    solved_at,
    state_of,
    value_of,
)
from mlxe_async.analysis.report.folder import RunRead
from mlxe_async.analysis.report.groups import Group, all_runs
from mlxe_async.analysis.report.markup import NOTHING, Markup, broken, details, element, join, section, table
from mlxe_async.analysis.report.points import flat, known

UNKNOWN = "?"
LONGEST_REASON = 24
MOST_OPEN = 8
_RESULTS = (
    "state",
    "solved",
    "best test",
    "last returns",
    "steps",
    "episodes",
    "updates",
    "took",
    "CPU seconds",
    "faults",
    "began",
    "seed",
)


def results(groups: Sequence[Group]) -> Markup:
    """Tell each run's result: in cards for one run, else in a column or, of many, a row for each."""
    runs = all_runs(groups)
    cells = [_result(run) for run in runs]
    if len(runs) == 1:
        told = element("dl", *(element("div", element("dt", name), element("dd", cells[0][name])) for name in _RESULTS))
    elif len(runs) <= 3:
        rows = [[name, *(one[name] for one in cells)] for name in _RESULTS]
        told = table(["", *(run.name for run in runs)], rows, "Results", numeric=False)
    else:
        names = [*(name for name in _RESULTS if name != "solved"), "solved"]  # the longest one last
        rows = [[run.name, *(one[name] for name in names)] for run, one in zip(runs, cells, strict=True)]
        told = table(["run", *names], rows, "Results")
        told = told if len(runs) <= MOST_OPEN else details(f"All {len(runs)} runs", told)
    return section("Result", "", told)


def settings(groups: Sequence[Group]) -> Markup:
    """The settings that differ, of several runs; and all of them, folded away."""
    values = [dict(flat(one.runs[0].settings)) for one in groups]
    names = sorted({name for one in values for name in one if not name.startswith("run.")})
    differing = [name for name in names if len({one.get(name, UNKNOWN) for one in values}) > 1]
    titles = [one.title for one in groups]
    parts = []
    if len(groups) > 1:
        rows = [[broken(name), *(one.get(name, "") for one in values)] for name in differing]
        parts.append(
            table(["key", *titles], rows, "Settings that differ", numeric=False)
            if rows
            else element("p", "They differ in nothing but their names.")
        )
    if names:
        rows = [[broken(name), *(one.get(name, "") for one in values)] for name in names]
        parts.append(details("All settings", table(["key", *titles], rows, "All settings", numeric=False)))
    else:
        parts.append(element("p", "No settings are known: neither the log nor settings.toml has them."))
    note = "Settings that differ between the runs; seeds and folders aside." if len(groups) > 1 else ""
    return section("Settings", note, *parts)


def machine(groups: Sequence[Group]) -> Markup:
    """Host and versions: once where all runs have the same, else a column each."""
    runs = all_runs(groups)
    facts = {run.name: {**_host(run), **dict(flat(run.fact("versions")))} for run in runs}
    distinct: dict[str, list[str]] = {}
    for name, one in facts.items():
        distinct.setdefault(json.dumps(one, sort_keys=True), []).append(name)
    columns = [(names, json.loads(one)) for one, names in distinct.items()]
    keys = list(dict.fromkeys(key for run in runs for key in facts[run.name]))
    if not keys:
        return section("Machine and versions", "", element("p", "Neither the log nor run.json tells of them."))
    heads = (
        ["all runs" if len(runs) > 1 else "this run"]
        if len(columns) == 1
        else [", ".join(names) for names, _ in columns]
    )
    rows = [[key, *(one.get(key, "") for _, one in columns)] for key in keys]
    return section("Machine and versions", "", table(["", *heads], rows, "Machine and versions", numeric=False))


def reading(groups: Sequence[Group]) -> Markup:
    """Tell what was read, and what of it could not be used."""
    said = [one for run in all_runs(groups) for one in _remarks(run)]
    lines = sum(run.story.lines for run in all_runs(groups))
    told = element(
        "p", f"Made from {lines:,} lines of logs. The page holds no script and asks the network for nothing."
    )
    return section(
        "How this page was made", "", told, element("ul", join(element("li", one) for one in said)) if said else NOTHING
    )


def _result(run: RunRead) -> dict[str, str]:
    story, end, best = run.story, run.story.end, best_test(run)
    seconds = known(end, "seconds")
    last = last_returns(run)
    cpu = known(end, "cpu_seconds")
    return dict(
        zip(
            _RESULTS,
            (
                _state(run),
                solved_at(run) or "no",
                "none" if best is None else f"{best[0]}: {value_of(best[1])}",
                "none" if last is None else f"{value_of(last[0])} (mean of the last {last[1]})".replace(" )", ")"),
                count(story.env_steps),
                count(story.episodes_ended),
                count(story.updates),
                amount(story.seconds if seconds is None else seconds),
                UNKNOWN if cpu is None else f"{cpu:,.1f}",
                f"{story.happenings.faults:,}",
                moment(story.start.get("ts")) if story.start else UNKNOWN,
                UNKNOWN if run.seed is None else str(run.seed),
            ),
            strict=True,
        )
    )


def _state(run: RunRead) -> str:
    """`finished: env_steps`; a reason in many words stands in the sentence at the top alone."""
    state, reason = state_of(run), str(run.story.end.get("reason") or "")
    return f"{state}: {reason}" if reason not in ("", state) and len(reason) <= LONGEST_REASON else state


def _host(run: RunRead) -> dict[str, str]:
    host = dict(flat(run.fact("host")))
    parameters = known(run.story.probe, "parameters")
    return host | ({} if parameters is None else {"weights of the network": f"{parameters:,.0f}"})


def _remarks(run: RunRead) -> Iterator[str]:
    story = run.story
    if story.lines and not story.start:
        yield f"{run.name}: the log has no run_start; its oldest lines were dropped, see [logs] max_mb."
    if not story.lines:
        yield f"{run.name}: the log is empty or not there."
    if story.unusable:
        yield f"{run.name}: {story.unusable:,} lines of the log could not be used; this program did not write them so."
    if story.sittings:
        times = ", ".join(amount(at) for at in story.sittings[:20])
        yield f"{run.name}: it was resumed after {times}; what became void is left out, and the time between."
    if state_of(run) == "died":
        yield f"{run.name}: its log has no last word. A copy of the folder of a run that goes on looks the same."
    yield from (f"{run.name}: {note}" for note in run.notes)
