"""Arrows of a timeline: from a rollout to the batch that learned from it and the version that came of it.

The log counts rows and does not name them. Lanes are queues, and so a rollout is in memory as soon as as many rows were
taken in as were delivered up to it. From a replay it is joined to the first batch afterwards; where each rollout is
learned from once, to the batch of as many rows, or else to the one whose turn it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from mlxe_async.analysis.trace.spans import Span

Track = tuple[str, int | None]
Stop = tuple[Track, Span]
_MOST_VERSIONS = 10_000


def name_of(track: Track) -> str:
    """The name of a track as it is shown: `learner`, `executor 0`."""
    role, index = track
    return role if index is None else f"{role} {index}"


@dataclass(slots=True, eq=False)
class Chain:
    """An arrow: the spans that it goes through, in the order of time.

    Args:
        name: `rollout` or `weights`.
        stops: spans, each with the track that it is on.
        delivered: rows of the run up to the end of the rollout, and rows of the rollout.
    """

    name: str
    stops: list[Stop]
    delivered: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class _Version:
    published: Stop
    readers: set[Track] = field(default_factory=set)


class Arrows:
    """Takes in the phases of a run in the order of its log."""

    def __init__(self) -> None:
        self.learns_once = False  # whether rollouts are, and not rows of a replay
        self.waiting_rows = 0
        self._chains: list[Chain] = []
        self._committed = self._ingested = 0
        self._forget()

    def _forget(self) -> None:
        self._delivered: deque[Chain] = deque()  # not yet in memory
        self._kept: list[Chain] = []  # in memory, not yet learned from
        self._learned: list[Chain] = []  # by the version that is published next
        self._versions: dict[int, _Version] = {}

    def resume(self, env_steps: int) -> None:
        """Begin anew: a run goes on with as many rows, all of them in memory."""
        self._committed = self._ingested = env_steps
        self._note_waiting()
        self._forget()

    def account(self, ledger: Mapping[str, Any]) -> None:
        """Correct the count of rows by the run's own account, where nothing is on its way."""
        if ledger.get("backlog") == 0:
            self._ingested = max(self._ingested, self._committed)
        self._note_waiting()

    def feed(self, phase: str, track: Track, span: Span, line: Mapping[str, Any]) -> None:
        """Take note of a phase."""
        stop = (track, span)
        match phase:
            case "generate":
                self._reads(stop, line.get("version"))
                self._generated(stop, line)
            case "memorize":
                self._memorized(stop, line.get("rows") or 0)
            case "learn" if line.get("updates"):
                self._take(stop, line.get("rows") or 0)
            case "publish":
                self._published(stop, line.get("version"))
            case "evaluate":
                self._reads(stop, line.get("version"))

    def chains(self) -> Iterator[Chain]:
        """All arrows that lead somewhere."""
        return (chain for chain in self._chains if len(chain.stops) > 1)

    def _generated(self, stop: Stop, line: Mapping[str, Any]) -> None:
        rows = line.get("rows") or 0
        self._committed = max(self._committed, line.get("env_steps") or 0)
        if rows:
            self._delivered.append(self._begin("rollout", stop, (self._committed, rows)))
        self._note_waiting()

    def _memorized(self, stop: Stop, rows: int) -> None:
        self._ingested += rows
        while self._delivered:
            first = self._delivered[0]
            if first.delivered[0] > self._ingested or first.stops[-1][1].end > stop[1].end:
                break
            first.stops.append(stop)
            self._kept.append(self._delivered.popleft())
        self._note_waiting()

    def _take(self, stop: Stop, rows: int) -> None:
        ready = [chain for chain in self._kept if chain.stops[-1][1].start <= stop[1].start]
        if self.learns_once:
            ready = self._turn(ready, rows)
        for chain in ready:
            chain.stops.append(stop)
        taken = set(map(id, ready))
        self._kept = [chain for chain in self._kept if id(chain) not in taken]
        self._learned += ready

    def _turn(self, ready: list[Chain], rows: int) -> list[Chain]:
        """Rollouts of a batch where each is learned from once: one of as many rows, or the oldest that have as many."""
        fitting = next((chain for chain in ready if chain.delivered[1] == rows), None)
        if fitting is None:
            before = accumulate((chain.delivered[1] for chain in ready), initial=0)
            return [chain for chain, sum_before in zip(ready, before, strict=False) if sum_before < rows]
        # A lane is a queue: what the same executor delivered before was left out as too old.
        passed = {id(chain) for chain in ready[: ready.index(fitting)] if chain.stops[0][0] == fitting.stops[0][0]}
        self._kept = [chain for chain in self._kept if id(chain) not in passed]
        return [fitting]

    def _published(self, stop: Stop, version: Any) -> None:
        for chain in self._learned:
            if chain.stops[-1][1].start <= stop[1].start:
                chain.stops.append(stop)
        self._learned = []
        if type(version) is int:
            self._versions[version] = _Version(stop)
            if len(self._versions) > _MOST_VERSIONS:
                del self._versions[next(iter(self._versions))]

    def _reads(self, stop: Stop, version: Any) -> None:
        """The first span of each process that works with a version."""
        found = self._versions.get(version) if type(version) is int else None
        if found is None or stop[0] in found.readers or found.published[1].end > stop[1].end:
            return
        found.readers.add(stop[0])
        self._begin("weights", found.published).stops.append(stop)

    def _begin(self, name: str, stop: Stop, delivered: tuple[int, int] = (0, 0)) -> Chain:
        chain = Chain(name, [stop], delivered)
        self._chains.append(chain)
        return chain

    def _note_waiting(self) -> None:
        self.waiting_rows = max(0, self._committed - self._ingested)
