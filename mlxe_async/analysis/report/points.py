"""Columns of numbers that grow line by line: eight bytes a number, so that hours of a run fit into memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

LARGEST = 1e18  # beyond that a number of a log is no count, time or return that can be drawn


class Points:
    """Rows of numbers, kept as columns; what is not known is NaN."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("d") for name in names}
        self._arrays = tuple(self._columns.values())

    def add(self, *values: float) -> None:
        """Append a row."""
        for column, value in zip(self._arrays, values, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, name: str) -> Doubles:
        return np.array(self._columns[name], dtype=np.float64)


def known(event: Mapping[str, Any], key: str) -> float | None:
    """The finite number under a key; None if there is none. A log may come from anywhere."""
    value = event.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST:
        return float(value)
    return None


def number(event: Mapping[str, Any], key: str) -> float:
    """The finite number under a key, NaN if there is none."""
    value = known(event, key)
    return math.nan if value is None else value


def required(event: Mapping[str, Any], key: str) -> float:
    """The finite number under a key.

    Raises:
        ValueError: there is none.
    """
    value = known(event, key)
    if value is None:
        raise ValueError(f"expected a number under {key}")
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
