"""Running mean and variance of all observations that a replay memory takes in, each row once.

Moments are kept for each lane, of the rows whose segments are closed, and for each stream, of the rows whose segment
is open. They are part of the bookkeeping, so they change with the positions in the lanes: a block is counted when it is
taken in, and never twice. Rows that are dropped, because they are generated again, are counted no more. The result does
not depend on which lane was read first.

A set of moments is a row of numbers (1 + 2 O,): how many observations, their mean, the sum of squared deviations.
"""

from __future__ import annotations

import numpy as np

from mlxe_async.memory.bookkeeping import Bookkeeping
from mlxe_async.memory.staging import Arrived
from mlxe_async.parts import FLOAT_BYTES, as_floats
from mlxe_async.rows import Array

_STRIDE = 1 << 40  # more than the rows of any stream


class RunningMoments:
    """Counts the observations of all lanes. What it changes in the bookkeeping is not committed here.

    Args:
        books: the memory's counters, moments included.
        envs: streams of each lane.
    """

    def __init__(self, books: Bookkeeping, envs: int) -> None:
        self._books, self._envs = books, envs
        self._entries = books.moments.shape[1] // 2

    def add(self, lane: int, new: Arrived, obs: Array) -> None:
        """Count a block's observations (n, ...) and add those of segments that it closes to the lane's."""
        if not len(new.stream):
            return
        rows = first_entries(obs, self._entries).astype(np.float64)
        rows = rows if new.order is None else rows[new.order]
        open_, closed = self._books.moments_open, new.segments
        # A piece is a run of rows of one stream without an end of a segment inside.
        keys, ends = new.stream * _STRIDE + new.number, closed.stream * _STRIDE + closed.end
        heads = np.flatnonzero(np.append(True, new.stream[1:] != new.stream[:-1]))
        ended_before = ends[np.isin(ends, keys[heads])] // _STRIDE  # their open segment is closed without a row of this
        inside = keys.searchsorted(ends)
        inside = inside[inside < len(keys)]
        starts = np.union1d(heads, inside[np.isin(keys[inside], ends)])
        pieces = _of_pieces(rows, starts)
        whole = [open_[ended_before]]
        open_[ended_before] = 0
        first = starts.searchsorted(heads)
        pieces[first] = _pairs(open_[new.streams], pieces[first])
        last_key = keys[np.append(starts[1:], len(keys)) - 1] + 1
        is_closed = np.isin(last_key, ends)
        whole.append(pieces[is_closed])
        open_[new.streams] = 0
        open_[new.stream[starts[~is_closed]]] = pieces[~is_closed]
        self._join(lane, np.concatenate(whole))

    def close(self, lane: int) -> None:
        """The open segments of a lane are closed."""
        of_lane = self._open_of(lane)
        self._join(lane, of_lane.copy())
        of_lane[:] = 0

    def forget(self, lane: int) -> None:
        """The open segments of a lane are dropped."""
        self._open_of(lane)[:] = 0

    def _open_of(self, lane: int) -> Array:
        return np.asarray(self._books.moments_open[lane * self._envs : (lane + 1) * self._envs])

    def _join(self, lane: int, whole: Array) -> None:
        if whole[:, 0].any():
            self._books.moments_closed[lane] = pooled(np.concatenate([self._books.moments_closed[lane][None], whole]))


def first_entries(obs: Array, entries: int) -> Array:
    """The entries (n, O) of observations (n, ...) that are counted: all, or the numbers that lie before pictures."""
    flat = obs.reshape(len(obs), -1)
    if flat.shape[1] == entries:
        return flat
    return (as_floats(flat[:, : FLOAT_BYTES * entries]) if flat.dtype == np.uint8 else flat)[:, :entries]


def pooled(sets: Array) -> Array:
    """The moments (1 + 2 O,) of all observations of several sets (K, 1 + 2 O) together."""
    count, entries = sets[:, :1], sets.shape[1] // 2
    mean, squares = sets[:, 1 : 1 + entries], sets[:, 1 + entries :]
    total = count.sum()
    middle = (count * mean).sum(0) / max(total, 1.0)
    return np.concatenate([[total], middle, (squares + count * (mean - middle) ** 2).sum(0)])


def mean_and_variance(moments: Array) -> tuple[Array, Array, int]:
    """Mean and variance (O,) of a set (1 + 2 O,), and of how many observations; 0 and 1 of none."""
    mean, squares = moments[1:].reshape(2, -1)
    count = round(float(moments[0]))
    return mean, squares / count if count else np.ones_like(mean), count


def _pairs(one: Array, other: Array) -> Array:
    """The moments (K, 1 + 2 O) of pairs of sets, each (K, 1 + 2 O)."""
    entries, total = one.shape[1] // 2, one[:, :1] + other[:, :1]
    shift = other[:, 1 : 1 + entries] - one[:, 1 : 1 + entries]
    share = other[:, :1] / np.maximum(total, 1.0)
    mean = one[:, 1 : 1 + entries] + shift * share
    squares = one[:, 1 + entries :] + other[:, 1 + entries :] + shift**2 * (one[:, :1] * share)
    return np.concatenate([total, mean, squares], axis=1)


def _of_pieces(rows: Array, starts: Array) -> Array:
    """The moments (K, 1 + 2 O) of consecutive pieces of rows (n, O), which begin at `starts` (K,)."""
    count = np.diff(np.append(starts, len(rows)))
    mean = np.add.reduceat(rows, starts, axis=0) / count[:, None]
    squares = np.add.reduceat((rows - mean.repeat(count, axis=0)) ** 2, starts, axis=0)
    return np.concatenate([count[:, None], mean, squares], axis=1)
