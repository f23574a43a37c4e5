"""What a task may offer for its tests: a simulator of its own that steps many rows at once.

It must be equal to the environment bit for bit, give a reward of 1 for every step, and end an episode by itself only.
CartPole has one (`physics`); for any other task environments are stepped one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


class Batch(Protocol):
    """N rows that are moved together."""

    obs: Floats
    """What the environment would show (N, O), written by `observe`; one array for good."""

    @property
    def state(self) -> Doubles:
        """A copy of the states (N, S)."""
        ...

    def tick(self, actions: NDArray[np.integer]) -> None:
        """One step of every row, by its action (N,). At most `BatchSimulator.block` times between two `fallen`."""
        ...

    def observe(self) -> None:
        """Bring `obs` up to date."""
        ...

    def fallen(self) -> NDArray[np.int64]:
        """The step in which the episode of each row ended, from 0 since the last call (N,); -1 where it goes on."""
        ...

    def lay_down(self, rows: NDArray[np.integer]) -> None:
        """Put rows (M,) that have ended where they can do no harm: they keep their place in the batch."""
        ...


class BatchSimulator(Protocol):
    """Makes batches."""

    block: int
    """Most ticks between two looks at which rows have ended."""

    def starts(self, seeds: Sequence[int], *, adverse: bool) -> Doubles:
        """The states (B, S) that resets with these seeds begin in; `adverse`: each moved to a hard place."""
        ...

    def batch(self, states: Doubles, features: int) -> Batch:
        """Rows in these states (N, S), observed by so many numbers."""
        ...
