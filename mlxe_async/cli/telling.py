"""One event as one line for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlxe_async.storage.safe_text import visible

LONGEST_VALUE = 160

_HEAD = ("ts", "mono_ns", "seq", "run", "event", "role", "idx")
# For programs, or told better in the files themselves.
_LEFT_OUT = {
    "run_start": ("settings", "host"),
    "probe_ok": ("spaces",),
    "phase": ("start_ns",),
    "ledger": ("lanes",),
    "stacks": ("stacks",),
    "times": ("histograms",),
    "warning": ("loud",),
}


_UNITS = {"episodes_started": "episodes begun", "env_steps": "steps", "updates": "updates"}


def told(event: Mapping[str, Any]) -> str:
    """`12:30:01.250 executor 0  episode_end  episode_return=200 length=200 ...`, safe to print."""
    name = str(event.get("event", "?"))
    time = str(event.get("ts", ""))[11:23]
    left_out = (*_HEAD, *_LEFT_OUT.get(name, ()))
    if name in _SENTENCES:
        said = _SENTENCES[name](event)
    else:
        said = " ".join(
            f"{key}={_shown(value)}" for key, value in event.items() if key not in left_out and _says(name, value)
        )
    return visible(f"{time} {who(event):<12} {name:<14} {said}".rstrip())


def published_at(solved: Mapping[str, Any]) -> str:
    """`version 40, published after 10 episodes, 1,234 steps, 56 updates and 3.2 s`: when the task was solved.

    Args:
        solved: the version, and the counters of that moment, as the `solved` event has them.
    """
    seconds = solved.get("seconds")
    lasted = f"{seconds:,.1f}" if isinstance(seconds, int | float) else "?"
    counts = [f"{_counted(solved.get(key))} {unit}" for key, unit in _UNITS.items()]
    return f"version {_counted(solved.get('version'))}, published after {', '.join(counts)} and {lasted} s"


def _counted(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "?"


def _solved(event: Mapping[str, Any]) -> str:
    return f"the first of the versions in a row that passed: {published_at(event)}"


def _init_from(event: Mapping[str, Any]) -> str:
    passed = "".join(f"; damaged: {visible(str(one), LONGEST_VALUE)}" for one in event.get("passed_over") or ())
    number, version = _counted(event.get("checkpoint")), _counted(event.get("version"))
    return f"the run begins with checkpoint {number}, version {version}, of {visible(str(event.get('path')))}{passed}"


def _evaluation(event: Mapping[str, Any]) -> str:
    passed = "not judged" if event.get("passed") is None else "passed" if event["passed"] is True else "failed"
    at = f" at step {_counted(event['failed_at'])}" if event.get("failed_at") is not None else ""
    returns = (event.get(f"return_{kind}") for kind in ("mean", "min"))
    mean, least = (f"{value:.4g}" if isinstance(value, int | float) else "?" for value in returns)
    counts = f"{_counted(event.get('episodes'))} episodes and {_counted(event.get('steps'))} steps"
    streak = f", {_counted(event['streak'])} in a row" if event.get("streak") else ""
    tested = f"test of version {_counted(event.get('version'))}: {passed}{at}{streak}"
    return f"{tested}; mean return {mean}, least {least}, of {counts}"


def _stage(event: Mapping[str, Any]) -> str:
    reason = visible(str(event.get("reason")), LONGEST_VALUE)
    return f"stage {_counted(event.get('stage'))} of {_counted(event.get('of'))} begins; the one before: {reason}"


# Events that are told in words; an event may come from anywhere, and need not be complete.
_SENTENCES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "solved": _solved,
    "init_from": _init_from,
    "stage": _stage,
    "evaluation": _evaluation,
}


def who(event: Mapping[str, Any]) -> str:
    """`executor 0`, `learner`."""
    index = event.get("idx")
    return f"{event.get('role', '?')}" + (f" {index}" if index is not None else "")


def _says(event: str, value: Any) -> bool:
    if event == "phase" and value == 0:  # each kind of phase counts other things
        return False
    return value is not None and value not in ("", [], {})


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{key}={_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + " ".join(map(_shown, value)) + "]"
    return visible(str(value), LONGEST_VALUE)
