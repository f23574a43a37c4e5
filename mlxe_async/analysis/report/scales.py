"""Axes with few, plain numbers on them: which places get a tick, and what is written there."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_TICKS = 7
LOGARITHMIC_FROM, FLATTENED = 300.0, 10.0
LEAST = 1e-100  # what is smaller is drawn as 0
FLAT = 1e-9  # differences that are smaller, beside the values, cannot be told apart
_STEPS = (1.0, 2.0, 5.0, 10.0)
_SPANS = ((100.0, 1.0, "s"), (6000.0, 60.0, "min"), (172_800.0, 3600.0, "h"), (math.inf, 86_400.0, "days"))


@dataclass(frozen=True)
class Axis:
    """The ends of an axis, and what is written at which places.

    Args:
        low: where it begins.
        high: where it ends, above `low`.
        ticks: places and their texts.
        logarithmic: whether distances are ratios; then `low` is above 0.
        unit: of the texts; empty if they have none.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False
    unit: str = ""

    def at(self, value: float) -> float:
        """The place of a value, from 0 to 1; values outside are drawn at the end."""
        if self.logarithmic:
            value = max(value, self.low)
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))


def counts(last: float) -> Axis:
    """An axis from 0 to a count."""
    high = last if last > LEAST else 1.0
    return Axis(0.0, high, _told(_ticks(0.0, high)))


def times(last: float) -> Axis:
    """An axis from 0 to some seconds, in the unit that suits them."""
    high = last if last > LEAST else 1.0
    _, size, unit = next(span for span in _SPANS if high <= span[0])
    ticks = tuple((tick * size, short(tick)) for tick in _ticks(0.0, high / size))
    return Axis(0.0, high, ticks, unit=unit)


def values(least: float, greatest: float, *, middle: float | None = None, from_zero: bool = False) -> Axis:
    """Round all values, with a little room; from 0 where that takes less than half of it, or on request.

    Values above 0 of very different sizes get a logarithmic axis, if most would be flattened: by a first loss that is a
    thousand times the last one, and not where the first values alone are small.

    Args:
        least: of the values.
        greatest: of them.
        middle: their median; None: as small as it may be.
        from_zero: whether the axis begins at 0 in any case.
    """
    is_wide = least > LEAST and greatest / least > LOGARITHMIC_FROM
    if is_wide and not from_zero and (middle is None or greatest > FLATTENED * middle):
        return _logarithmic(least, greatest)
    low, high = least, greatest
    if low >= 0 and (from_zero or low < 0.5 * high):
        low = 0.0
    largest = max(abs(low), abs(high))
    is_flat = high - low <= max(FLAT * largest, LEAST)
    room = (0.05 * largest if largest > LEAST else 1.0) if is_flat else 0.05 * (high - low)
    low, high = low if low == 0.0 else low - room, high + room
    return Axis(low, high, _told(_ticks(low, high)))


def _logarithmic(least: float, greatest: float) -> Axis:
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(greatest))
    every = max(1, math.ceil((last - first) / MOST_TICKS))
    decades = [10.0**power for power in range(first, last + 1, every)]
    low, high = least / 1.2, greatest * 1.2
    return Axis(low, high, tuple((at, short(at)) for at in decades if low <= at <= high), logarithmic=True)


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(one for one in _STEPS if one * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [min(max(number * step, low), high) for number in range(first, last + 1)]


def _told(ticks: list[float]) -> tuple[tuple[float, str], ...]:
    """Ticks with texts of as few digits as tell them apart."""
    for digits in (4, 6, 9):
        texts = [short(tick, digits) for tick in ticks]
        if len(set(texts)) == len(texts):
            break
    return tuple(zip(ticks, texts, strict=True))


def short(value: float, digits: int = 4) -> str:
    """`0.25`, `12`, `1.5k`, `20M`, `1e-05`: four digits at most, or as many as are asked for."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.99995:
            return f"{value / size:.{digits}g}{letter}"
    return f"{value + 0.0:.{digits}g}"  # no negative zero
