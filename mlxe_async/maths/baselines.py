"""Baselines that a return is compared with where there is no critic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.maths import together

Doubles = NDArray[np.float64]


def of_others(returns: NDArray[Any], step: NDArray[Any], episode: NDArray[Any]) -> Doubles:
    """The mean return (N,) of the other episodes at the same step; it does not depend on a row's own action.

    Where several workers learn together, the episodes of all of them are compared.

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
    episodes, sums = together.total_by_row(np.stack([np.bincount(step), np.bincount(step, known)], 1)).T
    beside = episodes[step] - 1  # an episode has one row at each step
    total = sums[step] - known
    rows = episodes.sum() - np.bincount(which)[which]
    elsewhere = (sums.sum() - np.bincount(which, known)[which]) / np.maximum(rows, 1)
    return np.where(beside > 0, total / np.maximum(beside, 1), np.where(rows > 0, elsewhere, 0.0))
