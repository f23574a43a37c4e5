"""One clock for all sittings of a run: what a resumption tells about the time in between is taken off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Line = Mapping[str, Any]


def continuous(lines: Iterable[Line]) -> Iterator[tuple[int, Line]]:
    """Each line with what is to be taken off its clocks, in nanoseconds.

    Lines that start a further sitting come before the one that tells the gap, and wait for it.
    """
    gap, last = 0, 0
    waiting: list[Line] = []
    for line in lines:
        event = line.get("event")
        if event == "run_start" and line.get("resumed") and last:
            yield from _without_word(waiting, last)
            waiting = [line]
            continue
        if event == "run_resume":
            gap = int(line.get("gap_ns") or 0)
            yield from ((gap, one) for one in waiting)
            waiting = []
        if waiting:
            waiting.append(line)
        else:
            last = max(last, line["mono_ns"] - gap)
            yield gap, line
    yield from _without_word(waiting, last)


def _without_word(waiting: list[Line], last: int) -> Iterator[tuple[int, Line]]:
    """Lines of a sitting that ended before it took the run up: they follow the last moment that is known."""
    for line in waiting:
        yield waiting[0]["mono_ns"] - last, line
