"""Spans of time on the threads of a timeline, of which no two on a thread overlap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

ROUNDING_NS = 1000  # seconds are floats in the log: phases that touch may seem to overlap by a little


@dataclass(slots=True, eq=False)
class Span:
    """Something that took time, by the clock of the log's `mono_ns`.

    Args:
        name: what is shown on it.
        start: when it began, in nanoseconds.
        end: when it ended; later than `start`.
        details: what is shown when it is selected.
        thread: which thread of its process it is on, from 0; set by `laid_out`.
    """

    name: str
    start: int
    end: int
    details: dict[str, Any] = field(default_factory=dict)
    thread: int = 0


def laid_out(spans: Iterable[Span]) -> int:
    """Give each span the first thread that is free when it begins. Returns how many threads that takes.

    A span that seems to begin before the last one has ended, by a rounding error, begins at that end.
    """
    ends: list[int] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        for thread, end in enumerate(ends):
            if span.start >= end - ROUNDING_NS and span.end > end:
                span.start = max(span.start, end)
                span.thread = thread
                break
        else:
            span.thread = len(ends)
            ends.append(0)
        ends[span.thread] = span.end
    return len(ends)
