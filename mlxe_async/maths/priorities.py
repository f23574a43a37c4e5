"""Priorities of stored rows and the probabilities made of them (numpy, float64, shape (N,))."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def td_priority(td_error: NDArray[np.floating], floor: float = 0.01, largest: float = 1.0) -> Doubles:
    """min(|delta| + floor, largest): surprising rows come back, but no row is ever out of reach."""
    return np.minimum(np.abs(np.asarray(td_error, np.float64)) + floor, largest)


def risk_priority(returns: NDArray[np.floating]) -> Doubles:
    """1 - u / max u + 0.01 with u = G - min G: rows close to a failure come first. All equal if all G are equal."""
    u = np.asarray(returns, np.float64) - np.min(returns)
    largest = u.max()
    return np.full(u.shape, 1.01) if largest <= 0 else 1.0 - u / largest + 0.01


def age_priority(age: NDArray[np.integer]) -> Doubles:
    """Max age - age + 1: the newest rows come first."""
    return np.asarray(np.max(age) - age + 1, np.float64)


def probabilities(factors: Sequence[NDArray[np.floating]], exponent: float) -> Doubles:
    """Sampling probabilities (N,): each factor normalised to sum 1, averaged, to the power `exponent`, normalised.

    Raises:
        ValueError: there is no factor, or one has a negative, non-finite or only zero entries.
    """
    if not factors:
        raise ValueError("probabilities: at least one factor is needed")
    mean = np.zeros(np.shape(factors[0]))
    for factor in factors:
        values = np.asarray(factor, np.float64)
        total = values.sum()
        if not np.isfinite(total) or total <= 0 or values.min() < 0:
            raise ValueError("probabilities: a factor needs finite, non-negative entries with a positive sum")
        mean += values / total / len(factors)
    powered = mean**exponent
    result: Doubles = powered / powered.sum()
    return result
