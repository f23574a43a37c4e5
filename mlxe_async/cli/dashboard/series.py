"""Values along a run in bounded memory: buckets of equally many values, of which two become one when there are more."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from mlxe_async.analysis.report.points import Doubles
from mlxe_async.analysis.report.thinning import Curve

MOST_BUCKETS = 256
FEW = 160  # values that are drawn each by itself
Across = Literal["env_steps", "seconds"]
_PLACE: dict[Across, int] = {"env_steps": 1, "seconds": 2}


class Series:
    """Mean, least and greatest value of each bucket, with its mean place by environment steps and by seconds."""

    def __init__(self) -> None:
        self._size = 1  # values in a full bucket
        self._buckets: list[list[float]] = []  # count, steps, seconds, line, least, greatest
        self._last = [math.inf]  # of these; at first there is none that has room
        self.count = 0

    def add(self, steps: float, seconds: float, value: float, line: float | None = None) -> None:
        """Append a value.

        Args:
            steps: environment steps of the run at which it stands.
            seconds: of the run.
            value: finite; the band reaches from the least to the greatest.
            line: what is drawn as the line; None: the value itself.
        """
        self.count += 1
        drawn = value if line is None else line
        last = self._last
        if last[0] >= self._size:
            if len(self._buckets) == MOST_BUCKETS:
                pairs = zip(self._buckets[::2], self._buckets[1::2], strict=True)
                self._buckets = [_merged(one, other) for one, other in pairs]
                self._size *= 2
            self._last = [1.0, steps, seconds, drawn, value, value]
            self._buckets.append(self._last)
            return
        # In place: of a fast run thousands of values come in a second.
        last[0] += 1.0
        last[1] += steps
        last[2] += seconds
        last[3] += drawn
        if value < last[4]:
            last[4] = value
        if value > last[5]:
            last[5] = value

    def curve(self, across: Across) -> Curve:
        """The line by steps or by seconds, ascending; with a band where a bucket holds several values."""
        rows = np.array(self._buckets or np.empty((0, 6)), dtype=np.float64)
        places = rows[:, _PLACE[across]] / rows[:, 0]
        rows = rows[order := np.argsort(places, kind="stable")]
        line = rows[:, 3] / rows[:, 0]
        if self.count <= FEW:
            return Curve(places[order], line)
        return Curve(places[order], line, rows[:, 4], rows[:, 5])

    def dots(self, across: Across) -> tuple[Doubles, Doubles] | None:
        """Each value with its place, where there are few; None where there are many."""
        if not 0 < self.count <= FEW:
            return None
        rows = np.array(self._buckets, dtype=np.float64)
        return rows[:, _PLACE[across]], rows[:, 4]

    def rows(self) -> list[list[float]]:
        """Return steps, seconds, line, least and greatest value of each bucket."""
        return [
            [steps / count, seconds / count, line / count, least, greatest]
            for count, steps, seconds, line, least, greatest in self._buckets
        ]


def _merged(one: list[float], other: list[float]) -> list[float]:
    sums = [a + b for a, b in zip(one[:4], other[:4], strict=True)]
    return [*sums, min(one[4], other[4]), max(one[5], other[5])]
