"""When periodic work is done: what falls due at about the same time is done together, so that a loop wakes once."""

from __future__ import annotations

TICK_S = 0.2


def nearest_tick(when: float) -> float:
    """The tick nearest to a time of the loop, in seconds; at most half of `TICK_S` earlier or later."""
    return round(when / TICK_S) * TICK_S
