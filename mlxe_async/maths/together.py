"""Sums over workers that learn together, each from rows of its own; a worker alone goes on with its own numbers.

Where several workers share an update (data-parallel learning: Goyal et al. 2017; for policy gradients Heess et al.
2017, DPPO), each one's gradient is the mean over its own rows. The mean over all rows is the mean of these, weighted by
the numbers of rows. Statistics that a loss needs of a whole minibatch are put together in the same way. All sums go
over the workers in their order, so each of them comes to the same bits.

Every worker must ask for the same sums in the same order: a group tells at once where one does not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 17
"""Most numbers of one exchange: a longer gradient is exchanged piece by piece."""
PIECE_BYTES = 8 * PIECE
GRADIENT, STATISTIC, END, TABLE = "gradient", "statistic", "end", "table"
KINDS = (GRADIENT, STATISTIC, END, TABLE)
"""A table is a statistic by rows, of which a worker may push fewer than others: the rest count as 0."""
Doubles = NDArray[np.float64]


class Group(Protocol):
    """The workers of one update, as one of them sees them."""

    @property
    def workers(self) -> int:
        """Number of workers."""

    def give(self, kind: str, numbers: NDArray[Any]) -> Callable[[], list[NDArray[Any]]]:
        """Give numbers (N,) of a kind, one of `KINDS`, and return what gathers those of all.

        It is to be called once, before more is given. It waits until all have given theirs, and returns what each
        worker gave, in their order, valid until more is given. It raises `MlxeError` if another worker gave something
        else, or is no more.
        """
        ...


class _Here(threading.local):
    """The group that this thread learns in."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.rows = 1.0
        self.gradients = 0


_HERE = _Here()


@contextlib.contextmanager
def learning_in(group: Group) -> Iterator[None]:
    """Learn together inside; `gradients_made` counts from 0."""
    _HERE.group = group
    try:
        yield
    finally:
        _HERE.group, _HERE.rows, _HERE.gradients = None, 1.0, 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Learn from this worker's own rows alone inside."""
    before, _HERE.group = _HERE.group, None
    try:
        yield
    finally:
        _HERE.group = before


def are_several() -> bool:
    """Return whether this thread learns together with others."""
    return _HERE.group is not None


def gradients_made() -> int:
    """Gradients that were exchanged so far."""
    return _HERE.gradients


def learn_from(rows: float) -> None:
    """Say by how much the gradients to come count: by the number, or the sum of weights, of this worker's rows."""
    if _HERE.group is not None:
        _HERE.rows = float(rows)


def shares(weight: Any) -> Any:
    """The weights (M,) of rows, an array or a tensor, over their sum; the gradients to come count by that sum."""
    total = weight.sum()
    learn_from(total)
    return weight / total


def gradient(vector: NDArray[Any]) -> None:
    """Replace this worker's gradient (P,) by the mean over the rows of all workers, in place."""
    group = _HERE.group
    if group is None:
        return
    _HERE.gradients += 1
    for start in range(0, len(vector), PIECE):
        _average(group, vector[start : start + PIECE])


def _average(group: Group, piece: NDArray[Any]) -> None:
    given = np.empty(len(piece) + 1, piece.dtype)
    given[0], given[1:] = _HERE.rows, piece
    found = group.give(GRADIENT, given)()
    share = np.array([one[0] for one in found], np.float64)
    share /= share.sum()
    np.multiply(found[0][1:], piece.dtype.type(share[0]), out=piece)
    for one, weight in zip(found[1:], share[1:], strict=True):
        piece += one[1:] * piece.dtype.type(weight)


def give(numbers: NDArray[Any]) -> Callable[[], list[NDArray[Any]]]:
    """Give statistics (N,), and return what gathers those of all workers, see `Group.give`; of a worker alone its own.

    What is done between the two need not wait for others.
    """
    group = _HERE.group
    own = np.array(numbers, np.float64)
    return (lambda: [own]) if group is None else group.give(STATISTIC, own)


def gathered(numbers: NDArray[Any]) -> list[NDArray[Any]]:
    """The statistics (N,) that each worker has, in their order; of a worker alone its own."""
    return give(numbers)()


def total(numbers: Any) -> Doubles:
    """The sum of what the workers have, numbers of any one shape."""
    return _summed(np.array(numbers, np.float64), STATISTIC)


def total_by_row(table: Any) -> Doubles:
    """The sum (T, K) of the tables (T_w, K) that the workers have, row by row, as long as the longest."""
    own = np.array(table, np.float64)
    whole = np.zeros((int(most(len(own))), own.shape[1]))
    whole[: len(own)] = own
    return _summed(whole, TABLE)


def _summed(own: Doubles, kind: str) -> Doubles:
    """The sum of what the workers have, piece by piece."""
    if (group := _HERE.group) is None:
        return own
    result = np.zeros(own.size)
    for start in range(0, own.size, PIECE):
        for one in group.give(kind, own.reshape(-1)[start : start + PIECE])():
            result[start : start + PIECE] += one
    return result.reshape(own.shape)


def most(number: float) -> float:
    """The largest of the numbers that the workers have."""
    return max(float(one[0]) for one in gathered(np.array([number])))


def mean(number: Any, rows: float | None = None) -> float:
    """The mean over the rows of all workers, given that over a worker's own; a worker alone gets what it gave.

    Args:
        number: a number, or a tensor ().
        rows: that it is the mean of; None: those of `learn_from`.
    """
    if _HERE.group is None:
        return float(number)
    weight = _HERE.rows if rows is None else rows
    summed, count = total([float(number) * weight, weight])
    return float(summed / count)


def moments(numbers: NDArray[Any]) -> tuple[float, float]:
    """Mean and variance of the numbers (N,) of all workers."""
    return give_moments(numbers)()


def give_moments(numbers: NDArray[Any]) -> Callable[[], tuple[float, float]]:
    """Give the moments of numbers (N,); returns what waits for the mean and variance of all workers' numbers.

    Chan, Golub and LeVeque 1979: each worker is asked once, so a minibatch costs one exchange.
    """
    known = np.asarray(numbers, np.float64)
    rows, centre = float(len(known)), float(known.mean())
    off = known - centre
    squares = float(off.dot(off))
    gather = give(np.array([rows, centre, squares]))
    return lambda: _put_together([part.tolist() for part in gather()])


def _put_together(parts: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean and variance of all numbers, given of each part how many, their mean, and the squares around it."""
    rows, centre, squares = parts[0]
    for more, other, spread in parts[1:]:
        shift, both = other - centre, rows + more
        squares += spread + shift * shift * (rows * more / both)
        centre, rows = centre + shift * (more / both), both
    return centre, squares / rows


def parts_of(rows: int, size: int, most_parts: int | None = None) -> int:
    """The number of minibatches of about `size` rows that the `rows` of each worker make together.

    Each worker cuts its own rows into that many parts.

    Args:
        rows: of this worker.
        size: rows of a minibatch, those of all workers together.
        most_parts: into which this worker's rows can be cut; None: single rows.
    """
    if _HERE.group is None:
        found = max(1, round(rows / size))
        return found if most_parts is None else min(most_parts, found)
    least = [rows if most_parts is None else most_parts]
    asked = gathered(np.array([rows, *least], np.float64))
    together = max(1, round(sum(float(one[0]) for one in asked) / size))
    return min(together, *(int(one[1]) for one in asked))
