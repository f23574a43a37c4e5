"""A sum tree over the weights of stored rows: draws in proportion to them, for whole plans of minibatches at once.

Binary below, flat above: every level holds the sums of pairs of the one beneath, until at most `TOP` are left; of these
running sums are made for each plan. All steps are numpy operations over many rows, and a step down costs as much
wherever it is taken. Sums are always made anew from their two terms, never by adding differences, so no rounding
accumulates, and a tree rebuilt from its leaves is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxe_async.rows import Array

TOP = 4096
# So many rows go down together: their scratch arrays stay in the nearest cache.
TOGETHER = 4096


class SumTree:
    """Weights of `capacity` rows and the sums above them, on bytes given by somebody else.

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
        # Two neighbours as one complex number: one gather fetches both.
        self._pairs = [level.view(np.complex128) for level in self._levels[:-1]]

    @staticmethod
    def nbytes(capacity: int) -> int:
        """Bytes needed for `capacity` leaves."""
        return 8 * sum(_sizes(capacity))

    @property
    def leaves(self) -> Array:
        """The weights (capacity,); whoever writes here calls `add_up` afterwards."""
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
            if 2 * len(index) >= len(self._levels[level]):
                for above in range(level, len(self._levels)):
                    self._whole_level(above)
                return
            index = index >> 1
            pairs = self._pairs[level - 1].take(index, mode="clip")
            self._levels[level][index] = pairs.real + pairs.imag

    def _whole_level(self, level: int) -> None:
        below = self._levels[level - 1]
        np.add(below[0::2], below[1::2], out=self._levels[level])

    def draw(self, points: Array) -> tuple[Array, Array]:
        """Find the rows at given points of the running sum of all weights.

        Args:
            points: shares of the total (n,), from 0 to below 1; fastest where neighbours are near each other.

        Returns:
            Rows (n,) of positive weight, and their weights (n,). Nothing may be drawn if `total` is 0.
        """
        running = np.cumsum(self._levels[-1])
        total = running[-1]
        index, weight = np.empty(len(points), np.int64), np.empty(len(points))
        before = np.concatenate(([0.0], running[:-1]))
        for start in range(0, len(points), TOGETHER):
            piece = slice(start, start + TOGETHER)
            index[piece] = self._descend(points[piece] * total, running, before)
        np.take(self._levels[0], index, out=weight, mode="clip")
        if not weight.all():
            for k in np.flatnonzero(weight == 0):
                index[k] = self._nearest(int(index[k]))
            weight = self._levels[0][index]
        return index, weight

    def _descend(self, rest: Array, running: Array, before: Array) -> Array:
        node = running.searchsorted(np.minimum(rest, np.nextafter(running[-1], 0)), side="right")
        rest -= before.take(node, mode="clip")
        left, ahead = np.empty_like(rest), np.empty_like(rest)
        # As bits: all ones where the way leads to the right, and nothing is cast or branched on.
        right, left_bits = ahead.view(np.int64), left.view(np.int64)
        for level in self._levels[-2::-1]:
            node += node
            np.take(level, node, out=left, mode="clip")
            np.subtract(left, rest, out=ahead)
            np.right_shift(right, 63, out=right)
            node -= right
            left_bits &= right
            rest -= left
        return np.asarray(node)

    def _nearest(self, index: int) -> int:
        """A row of positive weight beside one without, where rounding led to the very edge between them."""
        wide = len(self._levels[0]) // len(self._levels[-1])
        first = index // wide * wide
        there = first + np.flatnonzero(self._levels[0][first : first + wide])
        if not len(there):
            there = np.flatnonzero(self._levels[0])
        return int(there[np.abs(there - index).argmin()])


def _sizes(capacity: int) -> list[int]:
    depth = 0
    while -(-capacity >> depth) > TOP:
        depth += 1
    top = -(-capacity >> depth)
    return [top << (depth - level) for level in range(depth + 1)]
