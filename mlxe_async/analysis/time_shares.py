"""Shares of a process's time by what it did, between one `times` event of the log and the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class TimeShares:
    """Takes in the `times` of all processes in the order of the log."""

    def __init__(self) -> None:
        self._former: dict[tuple[str, Any, str], dict[str, float]] = {}

    def feed(self, line: Mapping[str, Any]) -> tuple[dict[str, float], float]:
        """Return shares by mode, which add up to 1, and the seconds that they are shares of; nothing of no time."""
        told = line.get("seconds")
        known = told if isinstance(told, Mapping) else {}
        now = {str(mode): float(seconds) for mode, seconds in known.items() if _is_time(seconds)}
        key = (str(line.get("role")), line.get("idx"), str(line.get("process")))
        former = self._former.get(key, {})
        self._former[key] = now
        spent = {mode: seconds - former.get(mode, 0.0) for mode, seconds in now.items()}
        if any(seconds < 0 for seconds in spent.values()):  # counted anew: the run was resumed
            spent = now
        total = sum(spent.values())
        return ({mode: seconds / total for mode, seconds in spent.items()} if total else {}), total


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
