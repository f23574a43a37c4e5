"""Estimators of returns and advantages in one segment of an episode: what is known, and what must be bootstrapped.

A target is `partial + coefficient * V(next_obs[cut])`: `partial` is the discounted sum of rewards that were seen,
`cut` the row where the sum stops, and `coefficient` the discount up to there, 0 if the world ended there. Stored in
this form a row can be learned from alone, with a value that is always the newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlxe_async.maths import together

if TYPE_CHECKING:
    import torch

Doubles = NDArray[np.float64]
_FEW = 32


class PartialReturn(NamedTuple):
    """See the module's description. All three have the segment's length L."""

    partial: Doubles
    coefficient: Doubles
    cut: NDArray[np.int64]


def n_step(reward: NDArray[np.floating], terminated: bool, discount: float, n: int) -> PartialReturn:
    """n-step returns of a segment (L,): sum of discount^i r_(t+i) for i < n, then discount^n V; fewer at the end.

    Args:
        reward: rewards (L,) of consecutive rows of one episode.
        terminated: whether the world ended with the last row; if not, its future is bootstrapped.
        discount: factor per step, 0 to 1.
        n: largest number of rewards summed, at least 1.
    """
    length = _length(reward)
    if n < 1:
        raise ValueError(f"n_step: n must be at least 1, got {n}")
    horizon = min(n, length)
    padded = np.concatenate([np.asarray(reward, np.float64), np.zeros(horizon - 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, horizon)
    partial = windows @ discount ** np.arange(horizon)
    count = np.minimum(n, length - np.arange(length))
    cut = np.arange(length) + count - 1
    coefficient = np.where(terminated & (cut == length - 1), 0.0, discount**count)
    return PartialReturn(partial, coefficient, cut)


def n_step_many(
    reward: NDArray[np.floating],
    lengths: NDArray[np.integer],
    terminated: NDArray[np.bool_],
    discount: float,
    n: int,
) -> PartialReturn:
    """`n_step` of several segments, one after the other: the same numbers, to the last bit.

    Args:
        reward: rewards (N,) of all segments.
        lengths: rows of each segment (S,), at least 1, with sum N.
        terminated: whether the world ended with the last row of each (S,).
        discount: factor per step, 0 to 1.
        n: largest number of rewards summed, at least 1.

    Returns:
        As `n_step`, all (N,); `cut` counts the rows of all segments.
    """
    if len(lengths) < min(n, int(lengths.max(initial=0))) > _FEW:  # the sums are longer than there are segments
        return in_turn(lambda piece, k: n_step(reward[piece], bool(terminated[k]), discount, n), reward, lengths)
    _length(reward)
    if n < 1:
        raise ValueError(f"n_step: n must be at least 1, got {n}")
    rows, end = np.arange(len(reward)), np.repeat(np.cumsum(lengths), lengths)
    count = np.minimum(n, end - rows)
    horizon = int(count.max())
    powers = discount ** np.arange(horizon + 1)
    # In the order in which one sum after the other would be made.
    partial = np.zeros(len(reward))
    known = np.asarray(reward, np.float64)
    for i in range(horizon):
        some = slice(None) if not i else rows[count > i]
        partial[some] += known[i:][some] * powers[i]
    cut = rows + count - 1
    coefficient = np.where(np.repeat(terminated, lengths) & (cut == end - 1), 0.0, powers[count])
    return PartialReturn(partial, coefficient, cut)


def in_turn(
    returns: Callable[[slice, int], PartialReturn], reward: NDArray[np.floating], lengths: NDArray[np.integer]
) -> PartialReturn:
    """Returns (N,) of several segments, made one after the other.

    Args:
        returns: of the rows of a segment, and which one it is.
        reward: rewards (N,) of all segments.
        lengths: rows of each segment (S,), with sum N.
    """
    split = PartialReturn(np.empty(len(reward)), np.empty(len(reward)), np.empty(len(reward), np.int64))
    start = 0
    for k, length in enumerate(lengths.tolist()):
        piece = slice(start, start + length)
        split.partial[piece], split.coefficient[piece], split.cut[piece] = returns(piece, k)
        split.cut[piece] += start
        start += length
    return split


class DiscountCurve(NamedTuple):
    """A discount that grows with the steps k >= 1 that are left: clip(first + slope ln k, low, high)."""

    first: float = 0.7983
    slope: float = 0.0379
    low: float = 0.5
    high: float = 0.99


PUBLISHED_CURVE = DiscountCurve()
"""MLxE's."""


def steps_to_end_discount(steps_left: NDArray[np.integer], curve: DiscountCurve = PUBLISHED_CURVE) -> Doubles:
    """MLxE's discount for a row with `steps_left` >= 1 rows after it: clip(0.7983 + 0.0379 ln k, 0.5, 0.99).

    Close to a failure the future counts little, so blame stays near the failure; from k = 158 it is 0.99.
    """
    growing = curve.first + curve.slope * np.log(np.asarray(steps_left, np.float64))
    return np.clip(growing, curve.low, curve.high)


def steps_to_end(
    reward: NDArray[np.floating], terminated: bool, curve: DiscountCurve = PUBLISHED_CURVE
) -> PartialReturn:
    """MLxE's returns of a segment (L,): G_0 = r at the end, G_k = r + discount_k G_(k-1) with k rows left.

    If the world did not end with the last row nothing is known of the steps left: the discount is the curve's highest
    throughout and V at the cut is bootstrapped.
    """
    length = _length(reward)
    if not terminated:
        return n_step(reward, False, curve.high, length)
    discount = np.zeros(length)
    discount[:-1] = steps_to_end_discount(np.arange(length - 1, 0, -1), curve)
    partial = np.zeros(length)
    following = 0.0
    steps = zip(reward.tolist(), discount.tolist(), strict=True)  # Python's own numbers are cheaper one by one
    for t, (gained, factor) in reversed(list(enumerate(steps))):
        following = gained + factor * following
        partial[t] = following
    return PartialReturn(partial, np.zeros(length), np.full(length, length - 1))


def state_discount(
    obs: NDArray[np.floating], limits: Sequence[float | None], low: float = 0.5, high: float = 0.99
) -> Doubles:
    """Discounts (L,) that fall from `high` in the middle to `low` where an entry reaches its limit.

    `low + (high - low) (1 - max_i |s_i| / limit_i)`, the bracket clipped to [0, 1]: MLxE's idea that close to a failure
    the future counts little, told by the state instead of by the steps that were left.

    Args:
        obs: observations (L, O), flattened.
        limits: per entry the magnitude that is a failure, None where there is none; one limit at least.
        low: discount at a limit.
        high: discount where all limited entries are 0.

    Raises:
        ValueError: `limits` does not fit the observations, has no limit, or one that is not positive.
    """
    limited = [entry for entry, limit in enumerate(limits) if limit is not None]
    largest = np.array([limit for limit in limits if limit is not None], np.float64)
    if obs.ndim != 2 or obs.shape[1] != len(limits) or not limited or not (largest > 0).all():
        raise ValueError(
            f"state_discount: expected observations (L, {len(limits)}) and a positive limit, got {obs.shape}, {limits}"
        )
    nearest = (np.abs(np.asarray(obs[:, limited], np.float64)) / largest).max(1)
    result: Doubles = low + (high - low) * np.clip(1.0 - nearest, 0.0, 1.0)
    return result


def by_state(reward: NDArray[np.floating], terminated: bool, discount: NDArray[np.floating]) -> PartialReturn:
    """Returns of a segment (L,) up to its end with a discount of its own for each row: G_t = r_t + discount_t G_(t+1).

    If the world did not end with the last row, V at its end is bootstrapped, discounted by the product of the rest.

    Args:
        reward: rewards (L,) of consecutive rows of one episode.
        terminated: whether the world ended with the last row.
        discount: what counts of the return after each row (L,), as from `state_discount`.
    """
    length = _length(reward)
    if discount.shape != reward.shape:
        raise ValueError(f"by_state: expected a discount for each row {reward.shape}, got {discount.shape}")
    partial, coefficient = np.zeros(length), np.zeros(length)
    following, remaining = 0.0, 0.0 if terminated else 1.0
    steps = zip(reward.tolist(), discount.tolist(), strict=True)  # Python's own numbers are cheaper one by one
    for t, (gained, factor) in reversed(list(enumerate(steps))):
        following = gained + (factor * following if t + 1 < length else 0.0)
        remaining = factor * remaining
        partial[t], coefficient[t] = following, remaining
    return PartialReturn(partial, coefficient, np.full(length, length - 1))


def generalised_advantage(
    reward: NDArray[np.floating],
    value: NDArray[np.floating],
    next_value: NDArray[np.floating],
    terminated: NDArray[np.bool_],
    ends: NDArray[np.bool_],
    discount: float,
    lambda_: float,
) -> Doubles:
    """Generalised advantage estimates (T, ...), Schulman et al. 2016, eq. 16; add `value` for the lambda-return.

    Args:
        reward: rewards (T, ...).
        value: V(obs) (T, ...).
        next_value: V(next_obs) (T, ...), of the same episode also at its end.
        terminated: the world ended here: `next_value` counts 0.
        ends: nothing flows back over this row: terminated, truncated, or the last row of what was gathered.
        discount: factor per step.
        lambda_: 0 gives one-step advantages, 1 the full return minus the value.
    """
    if not reward.shape == value.shape == next_value.shape == terminated.shape == ends.shape:
        raise ValueError(f"generalised_advantage: shapes differ, reward {reward.shape}, value {value.shape}")
    advantage: Doubles = np.asarray(reward + discount * next_value * (1.0 - terminated) - value, np.float64)
    return _carried_back(advantage, np.asarray(discount * lambda_ * (1.0 - ends), np.float64))


def _carried_back(value: Doubles, factor: Doubles) -> Doubles:
    """y[t] = value[t] + factor[t] y[t + 1] over the first axis, in place of both; the last factor does not count.

    By doubling, in log2(T) passes over whole arrays (Hillis and Steele 1986): after the pass of distance d, `value` is
    the sum over 2 d rows, and `factor` what is carried back over as many, where they follow. One row after the other
    takes two calls of numpy for each.
    """
    distance = 1
    while distance < len(value):
        value[:-distance] += factor[:-distance] * value[distance:]
        factor[:-distance] *= factor[distance:].copy()
        distance *= 2
    return value


def _length(reward: NDArray[np.floating]) -> int:
    if reward.ndim != 1 or not len(reward):
        raise ValueError(f"rewards of one segment: expected shape (L,) with L > 0, got {reward.shape}")
    return len(reward)


def normalised(advantage: torch.Tensor) -> torch.Tensor:
    """Mean 0 and deviation 1 within a minibatch (M,), so that a step does not depend on the rewards' size.

    Where several workers learn together, it is the minibatch of all of them.
    """
    if together.are_several():
        mean, variance = together.moments(advantage.numpy(force=True))
        shown: torch.Tensor = (advantage - mean) / (variance**0.5 + 1e-8)
        return shown
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
