"""Losses far from their running mean: Gorila, Nair et al. 2015, section 4, gives up gradients whose loss is one."""

from __future__ import annotations

import math

DECAY = 0.99
"""Part of the running mean and variance that a further loss leaves."""
FIRST = 50
"""Losses that are heard before one can be an outlier."""


class Outliers:
    """Judges each loss by those before it.

    An outlier counts too, so that losses which have changed for good are none after a while.

    Args:
        deviations: standard deviations from the running mean beyond which a loss is one.
    """

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._heard, self._mean, self._variance = 0, 0.0, 0.0

    def hears(self, loss: float) -> bool:
        """Take note of a loss; returns whether it is an outlier."""
        off = loss - self._mean
        is_one = self._heard >= FIRST and abs(off) > self._deviations * math.sqrt(self._variance)
        self._heard += 1
        share = max(1 / self._heard, 1 - DECAY)
        self._mean += share * off
        self._variance = (1 - share) * (self._variance + share * off * off)
        return is_one
