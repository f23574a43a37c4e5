"""Quantities that change with the clock of the run."""

from __future__ import annotations


def linear(first: float, last: float, over: int, now: int) -> float:
    """Interpolate linearly from `first` at 0 to `last` at `over` steps, and return `last` from then on.

    Args:
        first: the value at the start.
        last: the value from `over` on.
        over: length of the way, at least 1.
        now: where the clock stands, at least 0.
    """
    if over < 1 or now < 0:
        raise ValueError(f"linear: expected over >= 1 and now >= 0, got {over} and {now}")
    return first + (last - first) * min(1.0, now / over)
