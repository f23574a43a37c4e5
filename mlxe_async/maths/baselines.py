"""Baselines that a return is compared with where there is no critic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def of_others(returns: NDArray[Any], step: NDArray[Any], episode: NDArray[Any]) -> Doubles:
    """The mean return (N,) of the other episodes at the same step; it does not depend on a row's own action.

    Where no other episode came as far, it is the mean over all rows of the other episodes, and 0 without any.

    Args:
        returns: rewards to go (N,).
        step: how many rows of its episode came before each (N,), integers.
        episode: which episode each row belongs to (N,), integers.
    """
    if not returns.shape == step.shape == episode.shape:
        raise ValueError(f"baseline: shapes differ, returns {returns.shape}, step {step.shape}")
    known = np.asarray(returns, np.float64)
    _, which = np.unique(episode, return_inverse=True)
    beside = np.bincount(step)[step] - 1  # an episode has one row at each step
    total = np.bincount(step, known)[step] - known
    rows = len(known) - np.bincount(which)[which]
    elsewhere = (known.sum() - np.bincount(which, known)[which]) / np.maximum(rows, 1)
    return np.where(beside > 0, total / np.maximum(beside, 1), np.where(rows > 0, elsewhere, 0.0))
