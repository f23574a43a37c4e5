"""Lives of a run's processes: when each was asked for, when it was there, and when it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxe_async.analysis.trace.arrows import Track
from mlxe_async.analysis.trace.details import details_of, short
from mlxe_async.analysis.trace.spans import Span


class Lives:
    """Spans of starting and of being alive, for each track that has a process of its own."""

    def __init__(self) -> None:
        self.spans: dict[Track, list[Span]] = {}
        self._alive: dict[Track, Span] = {}

    def starts(self, track: Track, asked: int, ready: int, line: Mapping[str, Any]) -> None:
        """Note a process that was asked for, and is ready now."""
        self.ends(track, asked)
        self._keep(track, Span("start", asked, ready, details_of(line)))
        about = {"process": short(line.get("process")), "pid": short(line.get("pid"))}
        self._alive[track] = Span("alive", ready, ready + 1, about)

    def probes(self, track: Track, began: int, done: int) -> None:
        """Note the child that tried task and algorithm out."""
        self._keep(track, Span("probe", began, done))

    def ends(self, track: Track, at: int) -> None:
        """Note the end of the process of a track, if there is one."""
        if span := self._alive.pop(track, None):
            span.end = max(at, span.start + 1)
            self._keep(track, span)

    def end_all(self, at: int) -> None:
        """No process is alive any more, or more is not known of them."""
        for track in list(self._alive):
            self.ends(track, at)

    def _keep(self, track: Track, span: Span) -> None:
        self.spans.setdefault(track, []).append(span)
