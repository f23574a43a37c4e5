"""V-trace targets: what the present policy is worth, estimated from windows that an older one produced."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


class VTrace(NamedTuple):
    """Targets of one batch of windows, all (T, M), without gradient."""

    value_target: Any
    advantage: Any


def vtrace(
    ratio: Any,
    reward: Any,
    value: Any,
    next_value: Any,
    discount: Any,
    carry: Any,
    *,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """V-trace of Espeholt et al. 2018 (IMPALA), eq. 1 and section 4.2; all arguments (T, M), arrays or tensors.

    v_t = V_t + delta_t + discount_t c_t (v_(t+1) - V_(t+1)), delta_t = rho_t (r_t + discount_t V_(t+1) - V_t), and
    advantage_t = rho_t (r_t + discount_t v_(t+1) - V_t) with the truncated weight already in it.

    Args:
        ratio: pi(a|s) / mu(a|s), not yet truncated.
        reward: rewards.
        value: V(obs).
        next_value: V(next_obs), of the same episode also at its end.
        discount: gamma, 0 where the world ended.
        carry: 1 where the next row continues this one, 0 at every end of a window or an episode.
        lambda_: smaller values trust the value function earlier.
        rho_clip: largest weight of a TD error; it decides which policy is evaluated.
        c_clip: largest weight carried backwards; it decides only how fast.
    """
    if not ratio.shape == reward.shape == value.shape == next_value.shape == discount.shape == carry.shape:
        raise ValueError(f"vtrace: shapes differ, ratio {tuple(ratio.shape)}, reward {tuple(reward.shape)}")
    rho = ratio.clip(max=rho_clip)
    c = lambda_ * ratio.clip(max=c_clip)
    correction = rho * (reward + discount * next_value - value)  # delta_t, and then v_t - V_t
    for t in reversed(range(len(correction) - 1)):
        correction[t] += discount[t] * c[t] * carry[t] * correction[t + 1]
    following = 1 * next_value  # a copy, also of a tensor, of which + makes none
    following[:-1] += carry[:-1] * correction[1:]  # v_(t+1), or the bootstrapped value at an end
    return VTrace(value + correction, rho * (reward + discount * following - value))


def carry_mask(valid: Mask, terminated: Mask, truncated: Mask) -> Mask:
    """Return where the next row of a window continues this one (T, M): not at ends, before padding, at the last row."""
    follows = np.concatenate([valid[1:], np.zeros_like(valid[:1])])
    mask: Mask = follows & ~terminated & ~truncated
    return mask
