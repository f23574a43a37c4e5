"""One event as one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxe_async.logs.safe import visible

LONGEST_VALUE = 160

_HEAD = ("ts", "mono_ns", "seq", "run", "event", "role", "idx")
# For programs, or told better in the files themselves.
_LEFT_OUT = {
    "run_start": ("settings", "host"),
    "probe_ok": ("spaces",),
    "phase": ("start_ns",),
    "ledger": ("lanes",),
    "stacks": ("stacks",),
    "warning": ("loud",),
}


def told(event: Mapping[str, Any]) -> str:
    """`12:30:01.250 executor 0  episode_end  episode_return=200 length=200 ...`, safe to print."""
    name = str(event.get("event", "?"))
    time = str(event.get("ts", ""))[11:23]
    left_out = (*_HEAD, *_LEFT_OUT.get(name, ()))
    values = [f"{key}={_shown(value)}" for key, value in event.items() if key not in left_out and _says(name, value)]
    return visible(f"{time} {who(event):<12} {name:<14} {' '.join(values)}".rstrip())


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
