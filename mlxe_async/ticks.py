"""When periodic work is done: what falls due at about the same time is done together, so that a loop wakes once."""

from __future__ import annotations

TICK_S = 0.2


def nearest_tick(when: float, apart: float = TICK_S) -> float:
    """Return the tick nearest to a time of the loop, in seconds: at most half of `apart` earlier or later."""
    return round(when / apart) * apart
