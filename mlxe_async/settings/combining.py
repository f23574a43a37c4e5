"""The way in which a learner steps by what executors push."""

from __future__ import annotations

from dataclasses import dataclass

HOGWILD_PLACES = 10
"""Pushes of a worker that may wait where it waits for none of them."""


@dataclass(frozen=True)
class Combining:
    """It is known before a run.

    Args:
        pushes: of one step.
        places: pushes of one worker that may lie in memory at once. A worker alone may fill a mean, so that none waits
            for one that is gone.
        waits: a worker goes on when the learner has stepped by its push.
        gives_way: where all places are taken the oldest push gives way; else the worker waits.
        most_lag: versions by which a push may be older than the newest; None: any number.
        most_deviations: of a push's loss from the running mean; None: any number.
        lag: younger pushes that each waits for before it is stepped by.
        by_score: what is pushed is a whole network with a score, and the best one counts.
    """

    pushes: int = 1
    places: int = 1
    waits: bool = True
    gives_way: bool = False
    most_lag: int | None = None
    most_deviations: float | None = None
    lag: int = 0
    by_score: bool = False
