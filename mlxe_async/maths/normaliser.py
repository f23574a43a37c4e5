"""Running mean and variance of observations, and what a network is shown instead of the raw numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LIMIT = 10.0
EPSILON = 1e-8


class Moments(NamedTuple):
    """Mean and variance per entry (O,) of so many rows of observations."""

    mean: NDArray[np.floating]
    variance: NDArray[np.floating]
    rows: float


def merge(known: Moments, rows: NDArray[np.floating]) -> Moments:
    """The moments of all observations so far and of new rows (N, O) together; Chan, Golub and LeVeque 1979.

    With `known.rows` 0 these are the moments of the rows alone; without rows nothing changes.
    """
    if rows.ndim != 2 or rows.shape[1:] != known.mean.shape:
        raise ValueError(f"merge: expected rows (N, {len(known.mean)}), got {rows.shape}")
    if not len(rows):
        return known
    values = rows.astype(np.float64)
    new, total = len(rows), known.rows + len(rows)
    shift = values.mean(0) - known.mean
    squares = known.variance * known.rows + values.var(0) * new + shift**2 * (known.rows * new / total)
    return Moments(known.mean + shift * (new / total), squares / total, total)


def normalise(
    obs: NDArray[np.floating], mean: NDArray[np.floating], variance: NDArray[np.floating]
) -> NDArray[np.float32]:
    """(obs - mean) / standard deviation, clipped to +-10: an entry never seen to vary stays harmless when it does.

    `mean` and `variance` (..., O) broadcast against `obs` (..., O).
    """
    shown = (obs - mean) / np.sqrt(variance + EPSILON)
    result: NDArray[np.float32] = shown.clip(-LIMIT, LIMIT).astype(np.float32)
    return result
