"""Stragglers: notices an executor that the others wait for, or that is much slower, and names it. Never a kill.

Looked at from outside, by the progress words; an executor's own loop does nothing for it. Three ways to be named:

- it is at work and has not moved for a second (or twice the longest stand-still of the others, if that is longer)
  while others have moved, or wait;
- all others have delivered and have waited for it alone for a second, and it does less than half of their pace;
- over five seconds it did less than a quarter of what the others, all at work, did in the middle.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlxe_async.logs import events
from mlxe_async.supervisor.waiting import every

LOOK_S = 0.2
WAIT_S = 1.0
WINDOW_S = 5.0
SILENCE_S = 10.0  # between two events about one executor
GAP_S = 1.0  # after such a gap between two looks it was we who stood still


class Worker(Protocol):
    """What is looked at of an executor, `supervisor.handles.executor.ExecutorHandle`."""

    index: int

    @property
    def at_work(self) -> tuple[int, int] | None:
        """The life and the rollout it is at work in; None while it is not, or is being started again."""

    @property
    def pace(self) -> float:
        """Steps a second in its last rollout, all its environments together counted once; 0 before the first."""


class Page(Protocol):
    """Its progress page."""

    def pulse(self) -> tuple[int, int]:
        """Its progress, and since when it is in a call."""


class Teller(Protocol):
    """The log."""

    def emit(self, event: events.Event, role: str, idx: int | None) -> None:
        """Tell it."""


@dataclass
class _Seen:
    """What was seen of one executor."""

    work: tuple[int, int] | None = None
    progress: int = 0
    moved_s: float = 0.0
    life: int = -1
    first_rollout: int = -1
    longest_s: float = 0.0
    "Its longest stand-still that ended."
    named_s: float = float("-inf")
    looks: deque[tuple[float, int]] = field(default_factory=deque)
    "Time and progress at each look at which it was at work without a break."


class Stragglers:
    """Looks at the executors, and tells.

    Args:
        workers: all executors.
        pages: of each of them.
        log: tells the log.
        envs: environments of each.
    """

    def __init__(self, workers: Sequence[Worker], pages: Sequence[Page], log: Teller, envs: int) -> None:
        self._workers, self._pages, self._log, self._envs = workers, pages, log, envs
        self._seen = [_Seen() for _ in workers]
        self._looked_s: float | None = None
        self._alone: tuple[int, tuple[int, int]] | None = None
        self._alone_s = 0.0
        self._alone_progress = 0

    async def watch(self) -> None:
        """Look five times a second, for ever."""
        if len(self._workers) < 2:
            return
        async for _ in every(LOOK_S):
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Take one look.

        Args:
            now_s: monotonic seconds.
        """
        if self._looked_s is None or now_s - self._looked_s > GAP_S:
            named = [seen.named_s for seen in self._seen]
            self._seen = [_Seen(named_s=at) for at in named]
            self._alone = None
        self._looked_s = now_s
        for worker, page, seen in zip(self._workers, self._pages, self._seen, strict=True):
            self._take(now_s, worker.at_work, page.pulse()[0], seen)
        self._look_who_is_alone(now_s)
        others = _Others(self._seen)
        for worker, seen in zip(self._workers, self._seen, strict=True):
            if seen.work is None or now_s - seen.named_s < SILENCE_S:
                continue
            waited_s = self._waited(now_s, worker.index, seen, others)
            if waited_s is not None:
                seen.named_s = now_s
                rows = (seen.progress - self._progress_at(now_s - waited_s, seen)) * self._envs
                self._log.emit(events.Straggler(waited_s=round(waited_s, 3), rows=rows), "executor", worker.index)

    def _take(self, now_s: float, work: tuple[int, int] | None, progress: int, seen: _Seen) -> None:
        if work != seen.work:
            if work is None or seen.work is None or work[0] != seen.work[0]:
                seen.looks.clear()
            if work is not None and work[0] != seen.life:
                seen.life, seen.first_rollout = work
            seen.work, seen.moved_s = work, now_s
        elif work is not None and work[1] == seen.first_rollout:
            # The first rollout of a life has much to prepare, and says nothing about what is usual.
            seen.moved_s = now_s if progress != seen.progress else seen.moved_s
        elif progress != seen.progress:
            seen.longest_s = max(seen.longest_s, now_s - seen.moved_s - LOOK_S)
            seen.moved_s = now_s
        seen.progress = progress
        if work is not None:
            seen.looks.append((now_s, progress))
            while now_s - seen.looks[0][0] > WINDOW_S + LOOK_S:
                seen.looks.popleft()

    def _look_who_is_alone(self, now_s: float) -> None:
        at_work = [(worker.index, seen.work) for worker, seen in zip(self._workers, self._seen, strict=True)]
        busy = [(index, work) for index, work in at_work if work is not None]
        alone = busy[0] if len(busy) == 1 else None
        if alone != self._alone:
            self._alone, self._alone_s = alone, now_s
            self._alone_progress = self._seen[alone[0]].progress if alone else 0

    def _waited(self, now_s: float, index: int, seen: _Seen, others: _Others) -> float | None:
        """Seconds for which it has been a straggler; None if it is none."""
        still_s = now_s - seen.moved_s
        if still_s >= max(WAIT_S, 2 * others.longest_s(seen)) and others.have_moved_since(seen.moved_s):
            return still_s
        if self._alone is not None and self._alone[0] == index and now_s - self._alone_s >= WAIT_S:
            waited_s = now_s - self._alone_s
            pace = (seen.progress - self._alone_progress) / waited_s
            paces = [other.pace for other in self._workers if other.index != index and other.pace]
            if paces and pace < statistics.median(paces) / 2:
                return waited_s
        mine = _done(seen)
        usual = None if mine is None else others.usual_but(mine)
        if mine is not None and usual is not None and mine < usual / 4:
            return WINDOW_S
        return None

    @staticmethod
    def _progress_at(then_s: float, seen: _Seen) -> int:
        return next((progress for at_s, progress in seen.looks if at_s >= then_s), seen.progress)


class _Others:
    """What is compared with one executor, of all but itself: worked out once for all of them."""

    def __init__(self, all_seen: Sequence[_Seen]) -> None:
        self._longest = sorted((seen.longest_s for seen in all_seen), reverse=True)[:2]
        self._anyone_idle = any(seen.work is None for seen in all_seen)
        self._last_moved_s = max(seen.moved_s for seen in all_seen)
        self._done = sorted(each for seen in all_seen if (each := _done(seen)) is not None)

    def longest_s(self, seen: _Seen) -> float:
        """The longest stand-still of any other."""
        return self._longest[seen.longest_s == self._longest[0]]

    def have_moved_since(self, moved_s: float) -> bool:
        """Return whether any other, than one that is at work and moved then, is idle or moved later."""
        return self._anyone_idle or self._last_moved_s > moved_s

    def usual_but(self, mine: int) -> float | None:
        """Median of the calls of all others, whose own number is `mine`; None if there are none."""
        at, count = bisect.bisect_left(self._done, mine), len(self._done) - 1
        if count < 1:
            return None
        one, two = ((count - 1) // 2, count // 2)
        return (self._done[one + (one >= at)] + self._done[two + (two >= at)]) / 2


def _done(seen: _Seen) -> int | None:
    """Calls in the last five seconds, if it was at work all the time."""
    if not seen.looks or seen.looks[-1][0] - seen.looks[0][0] < WINDOW_S - LOOK_S:
        return None
    return seen.looks[-1][1] - seen.looks[0][1]
