"""The parts of a run's page as escaped HTML, each made of what is known of the run at this moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mlxe_async.analysis.report.ending import REASONS, amount, count, moment, value_of
from mlxe_async.analysis.report.markup import NOTHING, Markup, broken, details, element, join, table
from mlxe_async.analysis.report.points import flat, known, mapping
from mlxe_async.analysis.report.shares import keys, stack
from mlxe_async.analysis.report.speed import Spent, causes_of, styles_of
from mlxe_async.cli.dashboard.curves import lag_and_memory, losses, metrics, returns, speed, tests
from mlxe_async.cli.dashboard.run_now import LAST_EPISODES, RunNow
from mlxe_async.cli.view.picture import Lane

MOST_ROWS = 400
MOST_LANES = 64
LAST_SECONDS = 40
_STOPS = {
    "env_steps": "environment steps",
    "episodes": "episodes",
    "updates": "updates",
    "seconds": "seconds",
    "passed": "tests passed in a row",
}
_PROCESSES = "mlxe-exe mlxe-mem mlxe-lrn mlxe-eval"  # in the order in which they stand
_RUNNING = ("running", "unknown")


class Panel(NamedTuple):
    """A part of the page.

    Args:
        title: above it.
        make: makes its inside; empty where there is nothing to show.
        note: how to read it.
        is_on_demand: folded away, and made only while a reader has it open.
    """

    title: str
    make: Callable[[RunNow], Markup]
    note: str = ""
    is_on_demand: bool = False


def top(run: RunNow) -> Markup:
    """Tell what runs, whether it still does, and what limits its pace."""
    said = [element("p", element("b", run.state, class_=f"state {run.state}"), f" {_subject(run)}. {_ended(run)}")]
    if limit := known_text(run.bottleneck, "slowest"):
        advice = known_text(run.bottleneck, "advice")
        told = f"{advice[:1].upper()}{advice[1:]}." if advice else ""
        said.append(
            element("p", element("b", "Verdict"), f" Its pace is limited by: {limit}. {told}", class_="verdict")
        )
    if run.unusable:
        said.append(element("p", f"{run.unusable:,} lines of the log are in no usable form.", class_="note"))
    return join(said)


def numbers(run: RunNow) -> Markup:
    """Counters, the best score, means and where learning stands, in cards."""
    picture, best, test = run.picture, run.best, run.best_test
    now_ns = picture.last_ns
    at_work = sum(1 for lane in picture.lanes.values() if lane.state not in ("died", "left", "hangs", "restarts"))
    mean = run.mean_return
    cards = {
        "environment steps": count(run.env_steps),
        "episodes": count(run.episodes),
        "updates": count(run.updates),
        "version of the weights": count(picture.version),
        "steps per second, lately": count(picture.rate(now_ns)) if run.state in _RUNNING else "",
        "best return": ""
        if best is None or best.value is None
        else f"{value_of(best.value)} (episode {best.number:,}, {best.executor}, version {best.version:,})",
        f"mean of the last {len(run.recent)} returns": "" if mean is None else value_of(mean),
        "moving average (0.99, 0.01)": value_of(run.moving) if run.recent else "",
        "best test": "" if test is None else f"{value_of(test[1])} (version {test[0]:,})",
        "policy lag, mean and largest": "" if picture.lag_mean is None else _lag(run),
        "memory": _memory(run),
        "at work": f"{at_work} of {len(picture.lanes)}" if run.state in _RUNNING and picture.lanes else "",
        "newest checkpoint": f"{count(known(run.checkpoint, 'number'))}, version "
        f"{count(known(run.checkpoint, 'version'))}"
        if run.checkpoint
        else "",
        "faults": f"{run.happenings.faults:,}",
    }
    shown = [element("div", element("dt", name), element("dd", told)) for name, told in cards.items() if told]
    return element("dl", *shown)


def stops(run: RunNow) -> Markup:
    """Draw how far each stop condition is, and when it will be met if all goes on as it did."""
    picture = run.picture
    rows = []
    for name, (spent, limit) in picture.towards_stop(picture.last_ns).items():
        left = picture.to_go(name, picture.last_ns) if run.state in _RUNNING else None
        told = f"{_STOPS.get(name, name)}: {count(spent)} of {limit:,g}" + (f", {amount(left)} to go" if left else "")
        rows.append(
            stack(told, {"done": min(spent, limit), "to go": max(0.0, limit - spent)}, {"done": 2, "to go": -1})
        )
    return join(rows)


def lanes(run: RunNow) -> Markup:
    """Tell of each role what it does, how busy and how fast it was lately, and how full its lane is."""
    picture = run.picture
    now_ns = picture.last_ns
    told = run.ledger.get("lanes")
    backlogs = told if isinstance(told, list) else []
    slots = known(mapping(run.settings.get("memory")), "lane_slots")
    rows = []
    for lane in list(picture.lanes.values())[:MOST_LANES]:
        busy, rate = lane.activity.lately(now_ns)
        backlog = None
        if lane.role == "executor" and lane.index is not None and lane.index < len(backlogs):
            backlog = known(mapping(backlogs[lane.index]), "backlog_blocks")
        fill = "" if backlog is None else f"{backlog:,.0f}" + (f" of {slots:,.0f}" if slots else "")
        doing = lane.doing(now_ns) if run.state in _RUNNING or lane.is_faulty else ""
        cells = [
            element("span", doing, class_="bad" if lane.is_faulty else None),
            _seconds(lane, now_ns),
            f"{100 * busy:.0f} %",
            f"{value_of(rate)}/s",
            fill,
            f"{run.by_executor.get(lane.name, 0):,}" if lane.role == "executor" else "",
        ]
        rows.append([lane.name, *cells])
    head = ["", "does", f"the last {LAST_SECONDS} s", "busy", "rate", "blocks in lane", "episodes"]
    more = len(picture.lanes) - len(rows)
    rest = element("p", f"{more:,} more are not listed.") if more > 0 else NOTHING
    return join([table(head, rows, "Lanes"), rest]) if rows else NOTHING


def times_spent(run: RunNow) -> Markup:
    """Draw each process's time by what it did or waited for."""
    order = sorted(
        run.modes, key=lambda process: (_PROCESSES.find(process.partition(":")[0].rstrip("-0123456789")), process)
    )
    spent = {process: Spent(causes=dict(run.modes[process])) for process in order[:MOST_LANES]}
    names = causes_of(spent.values())
    styles = styles_of(names)
    if not names:
        return NOTHING
    bars = [
        stack(process, {name: one.causes.get(name, 0.0) for name in names}, styles) for process, one in spent.items()
    ]
    rows = []
    for process, one in spent.items():
        lived = sum(one.causes.values()) or 1.0
        shares = [f"{100 * one.causes.get(name, 0.0) / lived:.1f} %" for name in names]
        rows.append([process, *shares, f"{lived:,.1f}"])
    told = details("Numbers", table(["process", *names, "seconds"], rows, "Time by process and cause"))
    return join([keys(names, styles), *bars, told])


def episodes(run: RunNow) -> Markup:
    """List the last training episodes, the newest first, with the executor of each."""
    rows = [
        [
            f"{one.number:,}",
            one.executor,
            f"{one.env:,}",
            "" if one.value is None else value_of(one.value),
            value_of(one.moving),
            f"{one.length:,}",
            f"{one.version:,}",
            "" if one.seed is None else str(one.seed),
        ]
        for one in reversed(run.last_episodes)
    ]
    head = ["episode", "played by", "env", "return", "moving average", "steps", "version", "seed"]
    return table(head, rows, f"The last {LAST_EPISODES} episodes") if rows else NOTHING


def faults(run: RunNow) -> Markup:
    """Count faults and other marks, and tell the last of them in words."""
    happenings = run.happenings
    if not len(happenings):
        return element("p", "None: the log tells of no fault and no restart.")
    counted = element("p", ", ".join(f"{kind}: {many:,}" for kind, many in happenings.counts.most_common()))
    last = happenings.told[-20:][::-1]
    rows = [[amount(one.at), moment(one.clock), one.kind, one.who, one.said] for one in last]
    return join([counted, table(["after", "at", "what", "who", "in words"], rows, "The last events", numeric=False)])


def settings(run: RunNow) -> Markup:
    """List all settings."""
    rows = [[broken(name), told] for name, told in flat(run.settings)]
    if not rows:
        return element("p", "The log does not tell them.")
    return table(["key", "value"], rows[:MOST_ROWS], "Settings", numeric=False)


PANELS: dict[str, Panel] = {
    "top": Panel("", top),
    "numbers": Panel("", numbers),
    "stops": Panel("Until it stops", stops),
    "returns": Panel("Returns in training", returns, "The band goes from the least to the greatest return."),
    "tests": Panel("Tests", tests, "Frozen versions play with the greedy policy."),
    "lanes": Panel("Lanes", lanes),
    "times": Panel("Where the time goes", times_spent, "Each bar is the life of a process so far."),
    "lag": Panel("Policy lag and memory", lag_and_memory),
    "speed": Panel("How fast it goes", speed),
    "faults": Panel("Faults and restarts", faults),
    "episodes": Panel("The last episodes", episodes),
    "losses": Panel("Losses, and what else learning measured", losses, is_on_demand=True),
    "metrics": Panel("What environments told of themselves", metrics, is_on_demand=True),
    "settings": Panel("Settings", settings, is_on_demand=True),
}
ON_DEMAND = frozenset(name for name, panel in PANELS.items() if panel.is_on_demand)


def known_text(event: Mapping[str, Any], key: str) -> str:
    """The text under a key; empty if there is none."""
    value = event.get(key)
    return value if isinstance(value, str) else ""


def _subject(run: RunNow) -> str:
    told = (("", "algorithm"), ("on ", "env"), ("schedule ", "schedule"), ("seed ", "seed"))
    known_ = [f"{before}{run.start[key]}" for before, key in told if run.start.get(key) is not None]
    return ", ".join(known_).replace(", on ", " on ", 1) if known_ else "Its log does not tell what it learns"


def _ended(run: RunNow) -> str:
    lasted = amount(run.seconds)
    if run.end:
        seconds, reason = known(run.end, "seconds"), str(run.end.get("reason", "?"))
        lasted = lasted if seconds is None else amount(seconds)
        if run.state == "stopped":
            return f"It was stopped by {reason} after {lasted}."
        if run.end.get("exit_code") != 0:
            return f"It failed after {lasted}: {reason}."
        return f"It ended after {lasted}, because {REASONS.get(reason, f'of {reason}')}."
    match run.state:
        case "running":
            asked = run.picture.stopping
            return f"It has been going on for {lasted}." + (f" It was asked to stop ({asked})." if asked else "")
        case "died":
            return f"It died without a last word at {moment(run.last_ts)}, {lasted} after its start."
    return f"It has no last word, and whether it still runs cannot be told here; {lasted} of it are known."


def _lag(run: RunNow) -> str:
    picture = run.picture
    most = "?" if picture.lag_max is None else value_of(picture.lag_max)
    limit = "" if picture.lag_limit is None else f" (limit {value_of(picture.lag_limit)})"
    return f"{value_of(picture.lag_mean or 0.0)}, {most}{limit}"


def _memory(run: RunNow) -> str:
    kept, capacity = known(run.ledger, "kept"), known(run.ledger, "capacity")
    if kept is None or run.picture.takes_rollouts:
        return ""
    return f"{count(kept)} rows" + (f", {100 * kept / capacity:.0f} % full" if capacity else "")


def _seconds(lane: Lane, now_ns: int) -> Markup:
    """Draw as small bars, for each of the last seconds, the share that a role was busy."""
    shares = lane.activity.shares(now_ns, LAST_SECONDS)
    bars = "".join(f"M{place} 20V{20 - 20 * share:.1f}H{place + 1}V20Z" for place, share in enumerate(shares) if share)
    return element(
        "svg",
        element("path", d=f"M0 20H{LAST_SECONDS}", class_="mesh"),
        element("path", d=bars, class_="bar c0"),
        viewBox=f"0 0 {LAST_SECONDS} 20",
        preserveAspectRatio="none",
        class_="spark",
        aria_hidden="true",
    )
