"""Columns of numbers that grow line by line: eight bytes a number, so that hours of a run fit into memory."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

SMALLEST, LARGEST = -1e18, 1e18  # beyond that a number of a log is no count, time or return that can be drawn


class Points:
    """Rows of numbers, one after the other in one array; what is not known is NaN."""

    def __init__(self, *names: str) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._numbers = array("d")

    def add(self, *values: float) -> None:
        """Append a row, a value for each name."""
        self._numbers.extend(values)

    def __len__(self) -> int:
        return len(self._numbers) // len(self._places)

    def __getitem__(self, name: str) -> Doubles:
        return np.array(self._numbers, dtype=np.float64)[self._places[name] :: len(self._places)]


def known(event: Mapping[str, Any], key: str) -> float | None:
    """The finite number under a key; None if there is none. A log may come from anywhere."""
    value = event.get(key)
    kind = type(value)  # JSON knows no others; asked for millions of times
    if kind is float:
        return value if SMALLEST < value < LARGEST else None  # type: ignore[operator]  # it is a number
    return float(value) if kind is int and SMALLEST < value < LARGEST else None  # type: ignore[operator, arg-type]  # as above


def number(event: Mapping[str, Any], key: str) -> float:
    """The finite number under a key, NaN if there is none."""
    value = event.get(key)
    if type(value) is float and SMALLEST < value < LARGEST:  # as in `known`, of which a call costs as much again
        return value
    value = known(event, key)
    return math.nan if value is None else value


def required(event: Mapping[str, Any], key: str) -> float:
    """The finite number under a key.

    Raises:
        ValueError: there is none.
    """
    value = event.get(key)
    if type(value) is float and SMALLEST < value < LARGEST:
        return value
    value = known(event, key)
    if value is None:
        raise ValueError(f"expected a number under {key}")
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`schedule.kind` and its value as JSON, texts without quotes."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)
