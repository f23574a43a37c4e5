"""Numbers that an environment tells of itself: `info["metrics"]`, name -> number, after any step.

They are averaged over the steps that told them until they are asked for. What is no number is passed over, and noted
once: an environment's own figures never end an episode.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlxe_async.tasks.hostile import described, one_line

KEY = "metrics"
MOST, LONGEST = 64, 64
"""Names that are kept, and letters of each."""


class Metrics:
    """The sums of what environments told since the last `take`."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._odd = ""

    def add(self, told: Any) -> None:
        """Count what one step told; never raises for what that is."""
        try:
            if not isinstance(told, dict):
                raise TypeError(f'info["{KEY}"] is {described(told)}, expected names with numbers')  # noqa: TRY301 - noted below
            for name, value in told.items():
                self._add(name, value)
        except BaseException as error:  # noqa: BLE001 - converting what an environment gives is foreign code
            self._odd = self._odd or one_line(str(error))

    def _add(self, name: Any, value: Any) -> None:
        if type(name) is not str or not name.isprintable() or not 0 < len(name) <= LONGEST:
            raise TypeError(f'info["{KEY}"] has the name {described(name)}, expected up to {LONGEST} printable letters')
        array = np.asarray(value)
        number = float(array) if array.shape == () and array.dtype.kind in "biuf" else math.nan
        if not math.isfinite(number):
            raise TypeError(f'info["{KEY}"]["{name}"] is {described(value)}, expected a finite number')
        if name not in self._sums and len(self._sums) >= MOST:
            raise TypeError(f'info["{KEY}"] has more than {MOST} names: the others are passed over')
        self._sums[name] = self._sums.get(name, 0.0) + number
        self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """Return the mean of each number since the last call."""
        found = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums.clear()
        self._counts.clear()
        return {name: mean for name, mean in found.items() if math.isfinite(mean)}

    def take_odd(self) -> str:
        """Return what was odd since the last call, as a sentence; empty: nothing was."""
        odd, self._odd = self._odd, ""
        return odd
