"""Series of numbers that stay small however long a run goes on: what was done lately, and how a value developed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BUCKET_NS = 10**9
BUCKETS = 256
WINDOW = 10
LONGEST_CURVE = 128


class Activity:
    """How busy someone was in each of the last seconds, and how much was done in them.

    A phase is told when it is over, so what is known ends with the last one; what comes after it may be work or rest.
    """

    def __init__(self) -> None:
        self.known_ns = 0  # the end of the last phase
        self._began_ns = 0
        self._longest_ns = 0
        self._newest = -1
        self._busy = [0.0] * BUCKETS
        self._work = [0.0] * BUCKETS

    def add(self, start_ns: int, end_ns: int, work: float, share: float = 1.0) -> None:
        """Take note of a phase: how much was done in it, and for which share of it a process was really at work."""
        end_ns = max(start_ns, end_ns)
        if not self.known_ns:
            self._began_ns = start_ns
        self._longest_ns = max(end_ns - start_ns, self._longest_ns * 3 // 4)
        self.known_ns = max(self.known_ns, end_ns)
        first, last = start_ns // BUCKET_NS, end_ns // BUCKET_NS
        self._reach(last)
        per_ns = work / (end_ns - start_ns) if end_ns > start_ns else 0.0
        for bucket in range(max(first, self._newest - BUCKETS + 1), last + 1):
            overlap = min(end_ns, (bucket + 1) * BUCKET_NS) - max(start_ns, bucket * BUCKET_NS)
            self._busy[bucket % BUCKETS] += overlap * share
            self._work[bucket % BUCKETS] += per_ns * overlap if per_ns else work

    def is_quiet(self, now_ns: int) -> bool:
        """Return whether nothing was told for so long that it is hardly at work."""
        return now_ns - self.known_ns > max(3 * BUCKET_NS, 2 * self._longest_ns)

    def lately(self, now_ns: int) -> tuple[float, float]:
        """Busy share, from 0 to 1, and work per second, in the last ten seconds that are known of."""
        if not self.known_ns:
            return 0.0, 0.0
        end_ns = now_ns if self.is_quiet(now_ns) else self.known_ns
        last = end_ns // BUCKET_NS
        first = max(last - WINDOW, self._newest - BUCKETS + 1, self._began_ns // BUCKET_NS)
        wall = max(1, end_ns - max(self._began_ns, first * BUCKET_NS))
        known = range(first, min(last, self._newest) + 1)
        busy = sum(self._busy[bucket % BUCKETS] for bucket in known)
        work = sum(self._work[bucket % BUCKETS] for bucket in known)
        return min(1.0, busy / wall), work * 1e9 / wall

    def shares(self, now_ns: int, count: int) -> list[float | None]:
        """Busy share in each of the last `count` whole seconds, the oldest first; None where it is not told yet."""
        last = now_ns // BUCKET_NS
        untold = 0.0 if self.is_quiet(now_ns) else None
        shares: list[float | None] = []
        for bucket in range(last - count, last):
            if bucket * BUCKET_NS >= self.known_ns:
                shares.append(untold)
            elif bucket <= self._newest - BUCKETS:
                shares.append(0.0)
            else:
                shares.append(min(1.0, self._busy[bucket % BUCKETS] / BUCKET_NS))
        return shares

    def _reach(self, bucket: int) -> None:
        for passed in range(max(self._newest + 1, bucket - BUCKETS + 1), bucket + 1):
            self._busy[passed % BUCKETS] = self._work[passed % BUCKETS] = 0.0
        self._newest = max(self._newest, bucket)


class Curve:
    """How a value developed from the beginning: means of groups, which grow when there are too many."""

    def __init__(self) -> None:
        self._group = 1
        self._means: list[float] = []
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """The next value."""
        self._sum += value
        self._count += 1
        if self._count == self._group:
            self._means.append(self._sum / self._count)
            self._sum, self._count = 0.0, 0
        if len(self._means) == LONGEST_CURVE:
            self._means = [sum(self._means[i : i + 2]) / 2 for i in range(0, LONGEST_CURVE, 2)]
            self._group *= 2

    def add_all(self, values: Sequence[float]) -> None:
        """The next values, as if they were added one after the other."""
        at = 0
        while at < len(values):
            some = values[at : at + self._group - self._count]
            at += len(some)
            self._sum, self._count = self._sum + math.fsum(some[:-1]), self._count + len(some) - 1
            self.add(some[-1])

    def points(self, count: int) -> list[float]:
        """At most `count` values from the first to the last."""
        means = self._means if not self._count else [*self._means, self._sum / self._count]
        count = min(count, len(means))
        edges = [len(means) * i // count for i in range(count + 1)] if count else [0]
        return [sum(means[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
