"""Priorities of the rows in the ring, and the sums by which rows are drawn in proportion to them.

The sums follow from the priorities: they are made when they are first needed, kept up from then on, and made anew after
a restart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxe_async.memory.bookkeeping import LARGEST, Bookkeeping
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.memory.sum_tree import SumTree
from mlxe_async.rows import Array

_AT_ONCE = 1 << 16


class Priorities:
    """A priority for each row of the ring.

    Args:
        shape: the memory's sizes.
        buffer: the shared bytes.
        priority: the ring's priorities (capacity,), of the same bytes.
        books: the memory's counters; the largest priority is noted there and committed with what comes next.
    """

    def __init__(self, shape: ReplayShape, buffer: Any, priority: Array, books: Bookkeeping) -> None:
        self._shape, self._buffer, self._priority, self._books = shape, buffer, priority, books
        self._tree: SumTree | None = None
        self._exponent: float | None = None
        self.mended = 0
        "Priorities that were no priorities and were replaced, by this keeper."

    def reload(self) -> None:
        """The priorities may be others now than those that were noted here."""
        self._tree = None

    @property
    def largest(self) -> float:
        """The largest priority that any update left, at least 1: what a row has that no update has seen.

        Where it may fall with each update, it is at least what the last one left.
        """
        return float(self._books.whole[LARGEST : LARGEST + 1].view(np.float64)[0]) or 1.0

    def insert(self, rows: Array, there: Array | slice, lost: int, initial: Array | None = None) -> None:
        """New rows of the ring get a priority; the first `lost` get none.

        Args:
            rows: which (n,).
            there: the same rows, as a slice where they lie side by side.
            lost: how many of the first are not there any more.
            initial: their priorities (n,), at least 0; where infinite, and if None for all: the largest there is.
        """
        self._priority[there] = self.largest if initial is None else np.where(np.isinf(initial), self.largest, initial)
        self._priority[rows[:lost]] = 0
        if self._tree is not None:
            self._tree.set(rows, self._weights_of(self._priority[there]))

    def remove(self, rows: Array) -> None:
        """Rows (n,) of the ring are not to be drawn any more."""
        if self._tree is not None:
            self._tree.set(rows, 0.0)

    def update(self, rows: Array, new: Array, *, falls: bool) -> None:
        """Rows (n,) of the ring, n > 0, get new priorities (n,), at least 0 and finite; the largest `falls` before."""
        self._priority[rows] = new
        fallen = self.largest * (self._shape.largest_decay if falls else 1.0)
        self._books.whole[LARGEST : LARGEST + 1].view(np.float64)[0] = max(fallen, float(new.max()))
        if self._tree is not None:
            self._tree.set(rows, self._weights_of(new))

    def draw(self, offsets: Array, exponent: float) -> tuple[Array, Array]:
        """Draw one row from each of n equal parts of the sum of priority^exponent.

        Args:
            offsets: where in its part each point lies (n,), from 0 to 1.
            exponent: above 0.

        Returns:
            Rows of the ring (n,), and their probabilities in shares of an even draw's, N P (n,). Both are empty where
            no row has any priority.

        Raises:
            ValueError: the memory was not made for draws by priorities.
        """
        tree = self._tree_for(exponent)
        if not tree.total > 0:
            return np.zeros(0, np.int64), np.zeros(0)
        index, weight = tree.draw_spread(offsets)
        bad = self._mend(index)
        if len(bad):
            tree.set(bad, self._weights_of(self._priority[bad]))
        weight *= self._books.live_rows / tree.total
        return index, weight

    def _weights_of(self, priority: Array) -> Array:
        return np.asarray(np.power(priority.astype(np.float64), self._exponent or 0.0)) * (priority > 0)

    def _tree_for(self, exponent: float) -> SumTree:
        if self._tree is None or self._exponent != exponent:
            if not self._shape.prioritised:
                raise ValueError("drawing by priorities: expected a memory that was made for them (prioritised)")
            tree = SumTree(self._buffer, self._shape.offset("tree"), self._shape.capacity)
            self._exponent = exponent
            tree.leaves[:] = 0
            live = self._books.live()
            for start in range(0, len(live), _AT_ONCE):
                piece = live[start : start + _AT_ONCE]
                self._mend(piece)
                tree.leaves[piece] = self._weights_of(self._priority[piece])
            tree.add_up()
            self._tree = tree
        return self._tree

    def _mend(self, index: Array) -> Array:
        """Give rows whose priority cannot be one the largest there is, as a new row has; they were overwritten.

        Returns:
            Which of the rows these were.
        """
        priority = self._priority.take(index, mode="clip")
        is_good = (priority >= 0) & (priority < np.inf)
        if is_good.all():
            return index[:0]
        bad = np.unique(index[~is_good])
        self._priority[bad] = self.largest
        self.mended += len(bad)
        return bad
