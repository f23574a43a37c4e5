"""Discounted returns of episodes under way: of the environment's own rewards, by the algorithm's discount."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NAME = "discounted"
"""Its name in what an executor tells of episodes, and in its state."""


class Discounted:
    """The sums of discount^t * r_t of B environments so far.

    Args:
        discount: from 0 to 1.
        envs: B.
    """

    def __init__(self, discount: float, envs: int) -> None:
        self._discount = discount
        self.values = np.zeros(envs)
        "Discounted returns (B,) so far."
        self._factor, self._added = np.ones(envs), np.zeros(envs)

    @classmethod
    def of(cls, algorithm: Any, envs: int) -> Discounted | None:
        """Make it for an algorithm; None where its settings have no key `discount`."""
        discount = getattr(getattr(algorithm, "settings", None), "discount", None)
        return cls(float(discount), envs) if isinstance(discount, int | float) and 0 <= discount <= 1 else None

    def add(self, reward: NDArray[np.float64]) -> None:
        """Add the rewards (B,) of a step."""
        np.multiply(self._factor, reward, out=self._added)
        self.values += self._added
        self._factor *= self._discount

    def told(self, which: NDArray[np.int64]) -> list[float | None]:
        """Those of some environments (K,); None where what came before a resumption is not known."""
        # Only NaN is unlike itself.
        return [None if one != one else one for one in self.values[which].tolist()]

    def begin(self, which: Any) -> None:
        """Episodes begin in some environments: an index, several, or a mask (B,)."""
        self.values[which], self._factor[which] = 0.0, 1.0

    def go_on(self, values: NDArray[np.float64] | None, steps: NDArray[np.int64]) -> None:
        """Go on with episodes of some steps (B,) so far; without their values they stay unknown, NaN."""
        self.values[:] = np.where(steps == 0, 0.0, np.nan) if values is None else values
        self._factor[:] = np.power(self._discount, steps)
