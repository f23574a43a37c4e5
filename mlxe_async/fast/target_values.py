"""Values by a target network, kept for as long as it stays as it is.

A replay memory draws a row again and again, and the target network's values at its successor are the same each time,
until that network moves. Rows are told apart by the stamp that the memory gave them. What is missing is evaluated for
several minibatches at once, always in blocks of one size: so a row's values do not depend on what lies beside it, and a
learner that has kept nothing goes on with the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.interface import Rows
from mlxe_async.networks import Floats
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch

BLOCK = 32
"""Rows that are evaluated at once."""
AHEAD = 16
"""Minibatches whose missing rows are evaluated together: few blocks are not full, and no update takes long."""
PARTS = 8
"""Parts of the target network's numbers, of which a look compares one: all together lie in no cache."""
SELDOM = 100
"""Updates between two moves of the target network from which on it is worth while."""


@dataclass(frozen=True)
class Drawn:
    """The rows that a memory has drawn for the updates to come.

    Args:
        index: where the rows of U minibatches lie in the memory (U, M), below `capacity`.
        stamp: what tells each row from all others, for ever (U, M); positive.
        capacity: rows that the memory holds.
        columns: copies the columns of rows with an index and a stamp (n,), and tells which were still there.
    """

    index: NDArray[np.int64]
    stamp: NDArray[np.int64]
    capacity: int
    columns: Callable[[Array, Array], tuple[Rows, Array]]


class TargetValues:
    """Keeps the values (A,) of rows.

    Args:
        weights: of the target network.
        evaluate: values (n, A) of n rows by the column `cut_obs`.
        actions: A.
    """

    def __init__(self, weights: Sequence[torch.Tensor], evaluate: Callable[[Array], Floats], actions: int) -> None:
        self._weights, self._evaluate, self._actions = list(weights), evaluate, actions
        self._seen: list[Array] = []
        self._changes: list[int] = []
        self._looks = 0
        self._stamps = np.zeros(0, np.int64)
        self._values = np.zeros((0, actions), np.float32)
        self._drawn: Drawn | None = None
        self._next: tuple[int, Array] | None = None
        self.evaluated = 0
        "Rows that were evaluated so far, those that fill a block left out."

    def expect(self, drawn: Drawn) -> None:
        """Learn which rows come next."""
        self._drawn, self._next = drawn, None
        if len(self._stamps) != drawn.capacity:
            self._stamps = np.zeros(drawn.capacity, np.int64)
            self._values = np.zeros((drawn.capacity, self._actions), np.float32)

    def begin_update(self, number: int, positions: Array) -> None:
        """The next update is that of the minibatch of this number, and of its rows at these positions (m,)."""
        self._next = number, positions

    def take(self) -> Floats | None:
        """Values (m, A) of the rows of the update that comes next; None: it is not known which these are."""
        if self._drawn is None or self._next is None:
            return None
        (number, positions), self._next = self._next, None
        drawn = self._drawn
        if not self._is_as_seen(surely=number % AHEAD == 0):
            self._stamps.fill(0)
        index, stamp = drawn.index[number, positions], drawn.stamp[number, positions]
        if not (self._stamps[index] == stamp).all():
            self._look_ahead(drawn, number)
        if not (self._stamps[index] == stamp).all():
            return None
        found: Floats = self._values[index]
        return found

    def _look_ahead(self, drawn: Drawn, number: int) -> None:
        """Evaluate what is missing in this minibatch and in some that follow."""
        some = slice(number, number + AHEAD)
        stamp, first = np.unique(drawn.stamp[some], return_index=True)
        index = drawn.index[some].ravel()[first]
        missing = self._stamps[index] != stamp
        index, stamp = index[missing], stamp[missing]
        for start in range(0, len(index), BLOCK):
            here, rows = slice(start, start + BLOCK), len(index[start : start + BLOCK])
            columns, are_there = drawn.columns(index[here], stamp[here])
            # Also the last block is a full one.
            values = self._evaluate(columns["cut_obs"].take(np.arange(BLOCK) % rows, axis=0))[:rows]
            self._values[index[here][are_there]] = values[are_there]
            self._stamps[index[here][are_there]] = stamp[here][are_there]
            self.evaluated += rows

    def _is_as_seen(self, *, surely: bool) -> bool:
        """Return whether the network is the one that all values are of; `surely`: look also where torch saw no change.

        torch counts changes by its own operations. Others are looked for in one part of the numbers after the other.
        """
        changes = [one._version for one in self._weights]
        if changes == self._changes and not surely:
            return True
        now = [one.detach().numpy() for one in self._weights]
        self._looks += 1
        part = self._looks % PARTS if changes == self._changes else None
        self._changes = changes
        if len(self._seen) == len(now) and all(map(functools.partial(_are_equal, part), self._seen, now)):
            return True
        self._seen = [one.copy() for one in now]
        return False


def _are_equal(part: int | None, one: Array, other: Array) -> bool:
    """Compare two arrays, or, if they have rows enough, one part of their rows."""
    rows = slice(None) if part is None or len(one) < PARTS else slice(part, None, PARTS)
    return np.array_equal(one[rows], other[rows])
