"""Counters of a timeline: lag, rows on their way, memory, results, and rates that are spread over their phases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SECOND = 10**9
MOST_WORK = 2**63
MOST_STRETCHES = 3600  # of a rate: a second each, or longer ones


class Count(NamedTuple):
    """A value of a counter at a moment, or several that are drawn together."""

    name: str
    at: int
    values: dict[str, float]


class Counters:
    """Takes in what is counted; `all` tells it, rates included."""

    def __init__(self) -> None:
        self._counts: list[Count] = []
        self._last: dict[str, dict[str, float]] = {}
        self._work: dict[str, list[tuple[int, int, float]]] = {}

    def note(self, name: str, at: int, **values: Any) -> None:
        """Tell values from a moment on; those that are unknown, and all that are as before, are left out."""
        known = {key: value for key, value in values.items() if _is_number(value)}
        if known and self._last.get(name) != known:
            self._last[name] = known
            self._counts.append(Count(name, at, known))

    def spread(self, name: str, start: int, end: int, amount: Any) -> None:
        """Tell of work that was done from `start` to `end`, for a rate of it."""
        if _is_number(amount) and 0 < amount < MOST_WORK:
            self._work.setdefault(name, []).append((start, end, float(amount)))

    def all(self) -> Iterator[Count]:
        """All counts, not in order."""
        yield from self._counts
        for name, work in self._work.items():
            yield from _rate(name, work)


def _rate(name: str, work: list[tuple[int, int, float]]) -> Iterator[Count]:
    begin, end = min(start for start, _, _ in work), max(end for _, end, _ in work)
    width = max(SECOND, math.ceil((end - begin) / MOST_STRETCHES))
    amounts = [0.0] * ((end - begin) // width + 1)
    for start, stop, amount in work:
        first, last = (start - begin) // width, (stop - begin) // width
        for index in range(first, last + 1):
            inside = min(stop, begin + (index + 1) * width) - max(start, begin + index * width)
            amounts[index] += amount * inside / (stop - start)
    for index, amount in enumerate(amounts):
        lasts = min(width, end - begin - index * width)
        if lasts > 0:
            yield Count(name, begin + index * width, {"per second": round(amount * SECOND / lasts, 3)})
    yield Count(name, end, {"per second": 0.0})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def of_ledger(counters: Counters, at: int, line: Mapping[str, Any]) -> None:
    """Note what an account of rows tells: the memory's rows, and each lane's blocks."""
    counters.note("memory", at, rows=line.get("kept"))
    lanes = line.get("lanes")
    for number, lane in enumerate(lanes if isinstance(lanes, list) else ()):
        if isinstance(lane, Mapping):
            counters.note(f"lane {number}", at, blocks=lane.get("backlog_blocks"))
