"""Choosing among discrete actions with numpy: log-probabilities and draws."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

MANY, FEW = 64, 16
"""Rows from which on, and actions up to which, sums over the actions are taken as sums of long rows."""


def _is_long(rows: NDArray[np.floating]) -> bool:
    return rows.ndim == 2 and len(rows) >= MANY and rows.shape[1] <= FEW


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """Log-probabilities (..., A) of actions in proportion to exp(logits); finite for any finite logits."""
    if _is_long(logits):
        columns = np.ascontiguousarray(logits.T)
        columns = columns - columns.max(0)
        columns -= np.log(np.exp(columns).sum(0))
        return np.asarray(columns.T)
    result: NDArray[np.floating] = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return result


def by_action(logits: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Log-probabilities and probabilities (A, M) for logits (M, A), one row for each action.

    Sums over a few actions are then sums of long rows, which are several times as fast.
    """
    log_probs = np.ascontiguousarray(logits.T)
    log_probs = log_probs - log_probs.max(0)
    probs = np.exp(log_probs)
    sums = probs.sum(0)
    log_probs -= np.log(sums)
    probs /= sums
    return log_probs, probs


def sample(log_probs: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.int64]:
    """One action (B,) per row of log-probabilities (B, A), by inverting the cumulative distribution."""
    if _is_long(log_probs):
        columns = np.exp(log_probs.T)
        for before, column in itertools.pairwise(columns):  # a fifth of the time of `cumsum`
            column += before
        below: NDArray[np.int64] = (columns <= rng.random(len(log_probs)) * columns[-1]).sum(0)
        return below
    reach = np.exp(log_probs).cumsum(-1)
    # Scaled by the sum, which rounding keeps from being exactly 1, so that the last action is never overshot.
    actions: NDArray[np.int64] = (reach <= rng.random((len(reach), 1)) * reach[:, -1:]).sum(-1)
    return actions


def of_action(log_probs: NDArray[np.floating], action: NDArray[np.integer]) -> NDArray[np.floating]:
    """The entry (B,) of each row of (B, A) that belongs to the row's action (B,)."""
    if log_probs.shape[:1] != action.shape:
        raise ValueError(f"of_action: expected actions of shape {log_probs.shape[:1]}, got {action.shape}")
    chosen: NDArray[np.floating] = log_probs[np.arange(len(action)), action]
    return chosen
