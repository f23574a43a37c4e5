"""Seconds of a run for each line of its log, on one clock: what passed between two sittings is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mlxe_async.analysis.report.points import known

MOST_HELD = 10_000

Line = Mapping[str, Any]


class _Clock:
    """The run's own seconds; a line without a usable time has that of the line before it."""

    def __init__(self) -> None:
        self.gap_ns = 0.0
        self._began_ns: float | None = None
        self._last = 0.0

    def __call__(self, line: Line) -> float:
        now = known(line, "mono_ns")
        if now is not None:
            if self._began_ns is None:
                self._began_ns = now
            self._last = max(0.0, (now - self.gap_ns - self._began_ns) / 1e9)
        return self._last


def on_one_clock(lines: Iterable[Line]) -> Iterator[tuple[float, Line]]:
    """Each line with its second of the run.

    A resumption tells its gap only after its first lines, which therefore wait for it.
    """
    clock, held = _Clock(), list[Line]()
    is_first = True
    for line in lines:
        event = line.get("event")
        if event == "run_start" and line.get("resumed") is True and not is_first:
            yield from _late(held, clock)
            held = [line]
        elif not held:
            yield clock(line), line
        else:
            held.append(line)
            if event == "run_resume" or len(held) > MOST_HELD:
                clock.gap_ns = known(line, "gap_ns") or 0.0
                yield from [(clock(one), one) for one in held]
                held = []
        is_first = False
    yield from _late(held, clock)


def _late(held: list[Line], clock: _Clock) -> Iterator[tuple[float, Line]]:
    """Lines of a sitting that died before it told its gap: they have the time at which the one before ended."""
    for line in held:
        yield clock({}), line
