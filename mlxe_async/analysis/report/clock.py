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
        self._zero_ns: float | None = None  # by the clock of the lines that come
        self._gap_ns = 0.0
        self._last = 0.0

    def leave_out(self, gap_ns: float) -> None:
        """Take so much from all times to come, counted from the beginning and not from the last gap."""
        if self._zero_ns is not None:
            self._zero_ns += gap_ns - self._gap_ns
        self._gap_ns = gap_ns

    def __call__(self, line: Line) -> float:
        now = known(line, "mono_ns")
        if now is not None:
            if self._zero_ns is None:
                self._zero_ns = now
            at = (now - self._zero_ns) / 1e9
            self._last = at if at > 0.0 else 0.0
        return self._last


def on_one_clock(lines: Iterable[Line]) -> Iterator[tuple[float, Line]]:
    """Each line with its second of the run.

    A resumption tells its gap only after its first lines, which therefore wait for it.
    """
    clock, held = _Clock(), list[Line]()
    is_first = True
    for line in lines:
        event = line.get("event")
        if not held and event != "run_start":  # nearly all lines
            is_first = False
            yield clock(line), line
            continue
        if event == "run_start" and line.get("resumed") is True and not is_first:
            yield from _late(held, clock)
            held = [line]
        elif not held:
            yield clock(line), line
        else:
            held.append(line)
            if event == "run_resume" or len(held) > MOST_HELD:
                clock.leave_out(known(line, "gap_ns") or 0.0)
                yield from [(clock(one), one) for one in held]
                held = []
        is_first = False
    yield from _late(held, clock)


def _late(held: list[Line], clock: _Clock) -> Iterator[tuple[float, Line]]:
    """Lines of a sitting that died before it told its gap: they have the time at which the one before ended."""
    for line in held:
        yield clock({}), line
