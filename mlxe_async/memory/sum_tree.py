"""A sum tree over the weights of stored rows: draws in proportion to them, for whole plans of minibatches at once.

Every level holds the sums of four neighbours of the one beneath, until at most `TOP` are left. A draw of n points makes
running sums of the largest level that is not much larger than n, finds all points in it at once, and goes down from
there; all steps are numpy operations over many rows, and a step down costs as much wherever it is taken. Sums are
always made anew from their four terms, never by adding differences, so no rounding accumulates, and a tree rebuilt from
its leaves is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxe_async.rows import Array

TOP = 1024
# Rows that go down together: few enough that their scratch arrays stay in the nearest caches.
TOGETHER = 4096
_AT_ONCE = 1 << 16
# Making the sums of a whole level is cheaper than finding those that changed if not many more than these.
_WHOLE = 6
# From this number of changes on they are made in the order of the rows: sorting is cheaper than going to and fro.
_SORTED = 1024


class SumTree:
    """Weights of `capacity` rows and the sums above them, on bytes given by the caller.

    Args:
        buffer: writable bytes, at least `offset + SumTree.nbytes(capacity)`; what they hold does not matter.
        offset: where the levels start.
        capacity: number of leaves.
    """

    def __init__(self, buffer: Any, offset: int, capacity: int) -> None:
        self.capacity = capacity
        self._levels: list[Array] = []
        for size in _sizes(capacity):
            self._levels.append(np.frombuffer(buffer, np.float64, size, offset))
            offset += 8 * size
        # Four neighbours side by side: one gather fetches all.
        self._fours = [level.reshape(-1, 4) for level in self._levels[:-1]]

    @staticmethod
    def nbytes(capacity: int) -> int:
        """Bytes needed for `capacity` leaves."""
        return 8 * sum(_sizes(capacity))

    @property
    def leaves(self) -> Array:
        """The weights (capacity,); a caller that writes here calls `add_up` afterwards."""
        return self._levels[0][: self.capacity]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(np.cumsum(self._levels[-1])[-1])

    def add_up(self) -> None:
        """Make all sums anew from the leaves."""
        self._levels[0][self.capacity :] = 0
        for level in range(1, len(self._levels)):
            self._whole_level(level)

    def set(self, index: Array, weight: Array | float) -> None:
        """Give rows (n,) new weights (n,), not negative; where a row comes twice, the last one counts."""
        self._levels[0][index] = weight
        for level in range(1, len(self._levels)):
            if _WHOLE * len(index) >= len(self._levels[level]):
                for above in range(level, len(self._levels)):
                    self._whole_level(above)
                return
            index = index >> 2
            if level == 1 and len(index) >= _SORTED:
                index.sort()
            self._levels[level][index] = _sums(self._fours[level - 1].take(index, axis=0, mode="clip"))

    def _whole_level(self, level: int) -> None:
        fours, sums = self._fours[level - 1], self._levels[level]
        for start in range(0, len(sums), _AT_ONCE):
            sums[start : start + _AT_ONCE] = _sums(fours[start : start + _AT_ONCE])

    def draw_spread(self, offsets: Array) -> tuple[Array, Array]:
        """Find the rows at points of the running sum of all weights, one in each of n equal parts of the total.

        Args:
            offsets: where in its part each point lies (n,), in shares of its width, from 0 to below 1.

        Returns:
            Rows (n,) of positive weight, and their weights (n,). Nothing may be drawn if `total` is 0.
        """
        n = len(offsets)
        level, running = self._running(max(TOP, n))
        total = running[-1]
        rest = np.add(offsets, np.arange(n))
        rest *= total / n
        np.minimum(rest, np.nextafter(total, 0), out=rest)
        # How many points lie below each running sum: as many as whole parts do, and perhaps the one in its own part.
        parts = (running * (n / total)).astype(np.int64)
        np.minimum(parts, n - 1, out=parts)
        parts += rest.take(parts, mode="clip") < running
        # A point lies in the node before whose end it lies, and after whose predecessors' ends.
        node = np.cumsum(np.bincount(parts, minlength=n + 1)[:n])
        return self._found(level, running, rest, node)

    def _running(self, most: int) -> tuple[int, Array]:
        """The largest level of at most `most` sums, or the last one, and its running sums."""
        level = len(self._levels) - 1
        running = np.cumsum(self._levels[level])
        while level and len(self._levels[level - 1]) <= most:
            level -= 1
            fours, inside = self._fours[level], np.empty((len(running), 4))
            inside[0, 0] = fours[0, 0]
            np.add(running[:-1], fours[1:, 0], out=inside[1:, 0])
            np.add(inside[:, 0], fours[:, 1], out=inside[:, 1])
            np.add(inside[:, 1], fours[:, 2], out=inside[:, 2])
            np.minimum(inside[:, :3], running[:, None], out=inside[:, :3])
            inside[:, 3] = running
            running = inside.reshape(-1)
        return level, running

    def _found(self, level: int, running: Array, rest: Array, node: Array) -> tuple[Array, Array]:
        """Rows and weights for points (n,) that lie at `rest` (n,) of the running sums, in these nodes (n,) of them."""
        if level:
            before = np.concatenate(([0.0], running[:-1]))
            for start in range(0, len(rest), TOGETHER):
                piece = slice(start, start + TOGETHER)
                here = node[piece]
                node[piece] = self._descend(level, here, rest[piece] - before.take(here, mode="clip"))
        weight = self._levels[0].take(node, mode="clip")
        if not weight.all():
            for k in np.flatnonzero(weight == 0):
                node[k] = self._nearest(int(node[k]))
            weight = self._levels[0][node]
        return node, weight

    def _descend(self, level: int, node: Array, rest: Array) -> Array:
        n = len(rest)
        fours, before, behind = np.empty((n, 4)), np.empty(n), np.empty(n)
        # As bits a negative number is larger than all others, and its first bit is 1: nothing is cast or branched on.
        bits, least = behind.view(np.uint64), rest.view(np.uint64)
        node = node.view(np.uint64)
        for below in self._fours[level - 1 :: -1]:
            np.take(below, node.view(np.int64), axis=0, out=fours, mode="clip")
            node = (node << 2) + 3
            point = rest.copy()
            before[:] = 0
            for k in range(3):
                before += fours[:, k]
                np.subtract(point, before, out=behind)
                np.minimum(least, bits, out=least)
                np.right_shift(bits, 63, out=bits)
                node -= bits
        return node.view(np.int64)

    def _nearest(self, index: int) -> int:
        """A row of positive weight beside one without, where rounding led to the very edge between them."""
        wide = len(self._levels[0]) // len(self._levels[-1])
        first = index // wide * wide
        there = first + np.flatnonzero(self._levels[0][first : first + wide])
        if not len(there):
            there = np.flatnonzero(self._levels[0])
        return int(there[np.abs(there - index).argmin()])


def _sums(fours: Array) -> Array:
    sums: Array = fours[:, 0] + fours[:, 1]
    sums += fours[:, 2] + fours[:, 3]
    return sums


def _sizes(capacity: int) -> list[int]:
    depth = 0
    while -(-capacity // 4**depth) > TOP:
        depth += 1
    top = -(-capacity // 4**depth)
    return [top * 4 ** (depth - level) for level in range(depth + 1)]
