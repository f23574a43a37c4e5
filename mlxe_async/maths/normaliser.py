"""Running mean and variance of observations, and what a network is shown instead of the raw numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlxe_async.maths import together

LIMIT = 10.0
EPSILON = 1e-8


class Moments(NamedTuple):
    """Mean and variance per entry (O,) of observations, and the number of rows they are of."""

    mean: NDArray[np.floating]
    variance: NDArray[np.floating]
    rows: float


def nothing(inputs: int) -> Moments:
    """The moments of no rows: observations of `inputs` entries are shown as they are."""
    return Moments(np.zeros(inputs), np.ones(inputs), 0.0)


def merge(known: Moments, rows: NDArray[np.floating]) -> Moments:
    """The moments of all observations so far and of new rows (N, O) together; Chan, Golub and LeVeque 1979.

    Where several workers learn together, the new rows are those of all of them. With `known.rows` 0 these are the
    moments of the rows alone; without rows nothing changes.
    """
    if rows.ndim != 2 or rows.shape[1:] != known.mean.shape:
        raise ValueError(f"merge: expected rows (N, {len(known.mean)}), got {rows.shape}")
    if together.are_several():
        for more in together.gathered(np.concatenate(_of(rows, len(known.mean)), axis=None)):
            mean, variance = np.split(more[:-1], 2)
            known = joined(known, Moments(mean, variance, float(more[-1])))
        return known
    return joined(known, _of(rows, len(known.mean))) if len(rows) else known


def _of(rows: NDArray[np.floating], entries: int) -> Moments:
    values = rows.astype(np.float64)
    return Moments(values.mean(0), values.var(0), len(rows)) if len(rows) else nothing(entries)


def joined(known: Moments, more: Moments) -> Moments:
    """The moments of two sets of observations together, such as those of two executors; Chan et al. 1979."""
    total = known.rows + more.rows
    if not total:
        return known
    shift = more.mean - known.mean
    squares = known.variance * known.rows + more.variance * more.rows + shift**2 * (known.rows * more.rows / total)
    return Moments(known.mean + shift * (more.rows / total), squares / total, total)


def normalise(
    obs: NDArray[np.floating], mean: NDArray[np.floating], variance: NDArray[np.floating]
) -> NDArray[np.float32]:
    """(obs - mean) / standard deviation, clipped to +-10: an entry never seen to vary stays harmless when it does.

    `mean` and `variance` (..., O) broadcast against `obs` (..., O).
    """
    return normalising(mean, variance)(obs)


def normalising(
    mean: NDArray[np.floating], variance: NDArray[np.floating]
) -> Callable[[NDArray[np.floating]], NDArray[np.float32]]:
    """Return what `normalise` does by these moments; for many calls it is faster. They are copied."""
    mean, deviation = mean.copy(), np.sqrt(variance + EPSILON)

    def normalised(obs: NDArray[np.floating]) -> NDArray[np.float32]:
        shown: NDArray[np.floating] = (obs - mean) / deviation
        np.minimum(shown, LIMIT, out=shown)
        np.maximum(shown, -LIMIT, out=shown)
        result: NDArray[np.float32] = shown.astype(np.float32)
        return result

    return normalised
