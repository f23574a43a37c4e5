"""Facts that random play of an environment shows; apart from `measuring`, which plays, for this imports little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MOST_STEPS = 1000
"""Steps of random play."""


@dataclass(frozen=True)
class Measured:
    """Facts found by random play.

    Args:
        steps: of the environment.
        complete: whether it was stepped as often as intended, without a fault.
        episodes: ended ones.
        terminated: of these, those that the world ended.
        mean_length: steps of an ended one; None without any.
        rewarded: share of the steps with another reward than the commonest one.
        commonest_reward: that one.
        return_deviation: deviation of the running return, discounted by 0.99.
        smallest_deviation: of the entries of an observation that vary; None where none does, or it is a picture.
        largest_deviation: likewise.
        step_seconds: mean time of a step, resets aside.
    """

    steps: int
    complete: bool
    episodes: int
    terminated: int
    mean_length: float | None
    rewarded: float
    commonest_reward: float
    return_deviation: float
    smallest_deviation: float | None
    largest_deviation: float | None
    step_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Measured:
        """The inverse of `to_json`."""
        return cls(**told)
