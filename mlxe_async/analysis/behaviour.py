"""How a policy behaves, beside how much it wins: how often it switches its action, and how near to the edge it goes.

All measures are of whole episodes, each with its own actions; nothing goes over from one episode to the next. A step
can switch only where another came before it in the same episode: an episode of T actions has T - 1 such pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Switching:
    """How actions follow each other in some episodes.

    Args:
        episodes: with at least one action.
        steps: of all of them together.
        pairs: steps that had one before them in their episode.
        changes: pairs of which the two actions differ in at least one entry.
        squared_change: sum over all pairs of the squared change, averaged over the entries of an action, in squared
            units of the action; None for actions to choose from, whose numbers are names.
    """

    episodes: int = 0
    steps: int = 0
    pairs: int = 0
    changes: int = 0
    squared_change: float | None = None

    @property
    def rate(self) -> float | None:
        """Share of pairs, from 0 to 1, at which the action changed; None where there is no pair."""
        return self.changes / self.pairs if self.pairs else None

    @property
    def run_length(self) -> float | None:
        """Mean number of steps for which an action is held; None where there is no step.

        The end of an episode ends its last run: of policies that seldom switch it is a lower bound.
        """
        return self.steps / (self.changes + self.episodes) if self.steps else None

    @property
    def mean_squared_change(self) -> float | None:
        """Of continuous actions: the mean over pairs of the squared change; None elsewhere, or without a pair."""
        return None if self.squared_change is None or not self.pairs else self.squared_change / self.pairs

    def to_json(self) -> dict[str, Any]:
        """Its figures by name."""
        return {
            "episodes": self.episodes,
            "steps": self.steps,
            "changes": self.changes,
            "switching_rate": self.rate,
            "mean_run_length": self.run_length,
            "mean_squared_change": self.mean_squared_change,
        }


def switching(episodes: Iterable[ArrayLike], *, continuous: bool = False) -> Switching:
    """Return how often actions change in some episodes.

    Args:
        episodes: of each its actions in their order, (T,) or (T, ...).
        continuous: whether they are quantities; else they are choices, of which only sameness counts.

    Raises:
        ValueError: the actions of an episode are a single number, or not finite ones.
    """
    count = steps = pairs = changes = 0
    squared = 0.0
    for one in episodes:
        actions = np.asarray(one)
        if actions.ndim == 0:
            raise ValueError("switching: expected the actions of an episode as (T, ...), got a single one")
        if not len(actions):
            continue
        rows = actions.reshape(len(actions), -1)
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise ValueError("switching: expected finite actions, got NaN or infinity")
        count, steps, pairs = count + 1, steps + len(rows), pairs + len(rows) - 1
        changes += int((rows[1:] != rows[:-1]).any(1).sum())
        if continuous and len(rows) > 1:
            squared += float((np.diff(rows.astype(np.float64), axis=0) ** 2).mean(1).sum())
    return Switching(count, steps, pairs, changes, squared if continuous else None)


@dataclass(frozen=True)
class Edge:
    """How much of the room around the middle is used: shares of the way from there to the limit, 1 at the limit.

    Args:
        mean: over all steps of all episodes.
        worst: the greatest of all.
        worst_mean: mean over episodes of each one's greatest.
    """

    mean: float
    worst: float
    worst_mean: float


def edge(episodes: Sequence[ArrayLike], limit: float) -> Edge:
    """Return how near to the edge some episodes went, on CartPole with positions of the cart and a limit of 2.4.

    Args:
        episodes: of each its positions (T,), T at least 1, measured from the middle.
        limit: distance from the middle to either edge, in the same units.

    Raises:
        ValueError: there is no episode, one is empty or no row of finite numbers, or the limit is not above 0.
    """
    ways: list[NDArray[np.float64]] = [np.abs(np.asarray(one, np.float64)) for one in episodes]
    if not ways or any(one.ndim != 1 or not len(one) or not np.isfinite(one).all() for one in ways) or not limit > 0:
        raise ValueError("edge: expected finite positions (T,) of at least one episode, and a limit above 0")
    greatest = [float(one.max()) / limit for one in ways]
    return Edge(float(np.concatenate(ways).mean()) / limit, max(greatest), float(np.mean(greatest)))
