"""A line of the log as it is shown: a title on its mark, and the details that are seen when it is selected."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from mlxe_async.logs.events import COMMON
from mlxe_async.storage.safe_text import visible

LONGEST_TITLE, LONGEST_TEXT, DEEPEST = 100, 2000, 3

_HEAD = {*COMMON, "phase", "start_ns"} - {"ts"}
_LEFT_OUT = {
    "run_start": _HEAD | {"settings", "host"},
    "probe_ok": _HEAD | {"spaces"},
    "phase": _HEAD | {"ts", "seconds"},
}
_TITLES = ("message", "sentence", "reason", "cause", "what", "call", "slowest", "number")


def title_of(line: Mapping[str, Any]) -> str:
    """The event's name, and what it says first."""
    about = next((line[key] for key in _TITLES if line.get(key) not in (None, "")), None)
    name = visible(str(line["event"]).replace("_", " "), LONGEST_TITLE)
    return name if about is None else f"{name}: {visible(str(about), LONGEST_TITLE)}"


def details_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """All fields that tell something and are not shown otherwise."""
    left_out = _LEFT_OUT.get(str(line["event"]), _HEAD)
    return {_key(key): short(value) for key, value in line.items() if value and key not in left_out}


def short(value: Any, depth: int = 0) -> Any:
    """A value as it is shown: numbers with seven digits, texts that are harmless and not too long."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, int):
        return value if -(2**53) <= value <= 2**53 else str(value)
    if isinstance(value, str) or depth > DEEPEST:
        return visible(str(value), LONGEST_TEXT)
    if isinstance(value, Mapping):
        return {_key(key): short(item, depth + 1) for key, item in value.items()}
    return [short(item, depth + 1) for item in value] if isinstance(value, list) else value


@functools.lru_cache(maxsize=1024)  # the same few names come with every line
def _key(key: str) -> str:
    return visible(key, LONGEST_TITLE)
