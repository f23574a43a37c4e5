"""Whole sequences of rollouts, as PPO learns from them: what follows from the rows alone is found once for all pieces.

A piece is some environments' columns. Each is evaluated once, and the values that come of it make its advantages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.interface import Rows
from mlxe_async.maths import returns, rollouts
from mlxe_async.networks import Floats
from mlxe_async.rows import Array

Doubles = NDArray[np.float64]
LEAST = 1e-100
"""Least share of a row in its column's first one, at which sums in one pass are as exact as others."""
MANY_BYTES = 1 << 24
"""Size of all observations up to which they are laid down at once; pictures are piece by piece."""


class Sequences:
    """Rollouts (T, B, ...), laid down environment by environment (B, T, ...): a piece is where it is.

    Args:
        batch: their columns.
        shown: gives observations (..., *O) as the network is shown them (N, ...).
        discount: factor per step.
        lambda_: of generalised advantages.
    """

    def __init__(self, batch: Rows, shown: Callable[[Array], Array], discount: float, lambda_: float) -> None:
        self.length, count = shape = batch["valid"].shape
        self._order = np.arange(shape[0] * count).reshape(shape).T

        def turned(column: Array) -> Array:
            """Of (T, B, ...) the same (B, T, ...): by places, which is faster than to copy it turned."""
            return column.reshape(-1, *column.shape[2:]).take(self._order, axis=0)

        ends, ended, missing = (turned(one) for one in rollouts.unknown(batch))
        self.action: Array = turned(batch["action"]).astype(np.int64, copy=False).reshape(-1)
        self.log_prob: Floats = turned(batch["log_prob"]).astype(np.float32, copy=False).reshape(-1)
        self.reward = turned(batch["reward"])
        self.valid: Floats = turned(batch["valid"]).astype(np.float32)
        self.are_valid: Array = np.asarray(self.valid.all(1))
        self.ends, self.ended, self.discount, self.lambda_ = ends, ended, discount, lambda_
        self.decay = (discount * lambda_) ** np.arange(self.length, dtype=np.float64)
        self.is_exact = bool(self.decay[-1] > LEAST)
        if self.is_exact:
            self.kept, self.next = discount * (1.0 - ended), _next(ends)
        self.column, self.step = np.nonzero(missing)
        self.first = np.searchsorted(self.column, np.arange(count + 1))
        self._batch, self._shown = batch, shown
        self._obs = self._after = None
        if batch["obs"].nbytes <= MANY_BYTES:
            self._obs, self._after = self._observed(slice(None), slice(None))

    def observed(self, some: slice, last: slice) -> tuple[Array, Array]:
        """Return what the network is shown of some columns, and of the `last` observations that are in no row."""
        if self._obs is None or self._after is None:
            return self._observed(some, last)
        return self._obs[some.start * self.length : some.stop * self.length], self._after[last]

    def _observed(self, some: slice, last: slice) -> tuple[Array, Array]:
        obs, after = self._batch["obs"], self._batch["next_obs"][self.step[last], self.column[last]]
        return self._shown(obs.reshape(-1, *obs.shape[2:]).take(self._order[some], axis=0)), self._shown(after)

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Pieces of about `rows` valid rows, as `rollouts.columns` has them, which are learned from next."""
        for piece in rollouts.columns({"valid": self.valid.T, "column": np.arange(len(self.valid))}, rows, ("column",)):
            yield Piece(self, int(piece["column"][0]), int(piece["column"][-1]) + 1)


class Piece:
    """The columns of some environments, their rows one after the other (M, ...).

    Args:
        whole: all columns.
        start: the first one.
        stop: where they end.
    """

    def __init__(self, whole: Sequences, start: int, stop: int) -> None:
        self._whole, self._some, here = whole, slice(start, stop), slice(start * whole.length, stop * whole.length)
        self.action, self.log_prob = whole.action[here], whole.log_prob[here]
        self.valid = None if whole.are_valid[start:stop].all() else whole.valid.reshape(-1)[here]
        last = slice(whole.first[start], whole.first[stop])
        self.obs, self.after = whole.observed(self._some, last)
        self._step, self._column = whole.step[last], whole.column[last] - start

    def advantages(self, values: Floats, after: Floats) -> tuple[Floats, Floats]:
        """Generalised advantages (M,), Schulman et al. 2016, eq. 16, and lambda-returns (M,), given values (M,).

        Args:
            values: of the rows' observations.
            after: of observations `after` rows whose next value is in no row. All sums are in double precision.
        """
        whole, some = self._whole, self._some
        value = values.reshape(-1, whole.length)
        following = np.empty(value.shape)
        following[:, :-1], following[:, -1] = value[:, 1:], 0
        following[self._column, self._step] = after
        if whole.is_exact:
            following *= whole.kept[some]
            following += whole.reward[some]
            following -= value
            found = self._carried_back(following)
        else:
            arrays = (whole.reward[some].T, value.T, following.T, whole.ended[some].T, whole.ends[some].T)
            found = returns.generalised_advantage(*arrays, whole.discount, whole.lambda_).T
        advantage: Any = found.astype(np.float32).reshape(-1)
        return advantage, advantage + values

    def _carried_back(self, value: Doubles) -> Doubles:
        """The sum over each row (B, T) and those after it in its sequence, which decay.

        In one pass: sums up to the last row, less those from the next sequence on. They are weighted by the decay from
        the first row on, so that a later row weighs less in its sum.
        """
        whole, (count, length) = self._whole, value.shape
        sums = np.empty((count, length + 1))
        np.multiply(value, whole.decay, out=sums[:, :-1])
        sums[:, -1] = 0
        np.add.accumulate(sums[:, ::-1], 1, out=sums[:, ::-1])
        found = sums[:, :-1] - sums.take(whole.next[self._some] - self._some.start * (length + 1))
        found /= whole.decay
        return np.asarray(found)


def _next(ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where the next sequence begins, for each row (B, T): a place among columns of T + 1 rows."""
    _, length = ends.shape
    last = np.flatnonzero(ends)
    begins = last // length + last + 1
    return np.repeat(begins, np.diff(last, prepend=-1)).reshape(ends.shape)
