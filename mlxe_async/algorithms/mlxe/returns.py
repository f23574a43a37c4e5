"""Returns as MLxE counts them, split into what is known and what is bootstrapped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlxe_async.algorithms.mlxe.fields import ReturnFields
from mlxe_async.maths import returns
from mlxe_async.rows import Array


def partial_return(
    fields: ReturnFields,
    reward: Array,
    lengths: Array,
    ends: tuple[Array, Array],
    obs: Array,
    limits: Sequence[float | None] | None,
) -> returns.PartialReturn:
    """Targets partial + coefficient * V(next_obs[cut]) of segments (S,) of N rows together, one after the other.

    Args:
        fields: how to count.
        reward: rewards (N,).
        lengths: rows of each segment (S,).
        ends: whether the world ended with the last row, and whether the episode was cut there, each (S,).
        obs: observations (N, O), flattened.
        limits: what the task declares as failure, for `returns = "state"`.
    """
    terminated, truncated = ends
    if fields.returns == "steps_to_end":
        curve = fields.curve
        split = returns.in_turn(
            lambda some, k: returns.steps_to_end(reward[some], bool(terminated[k]), curve), reward, lengths
        )
    elif fields.returns == "state":
        discount = returns.state_discount(obs, limits or (), fields.discount_low, fields.discount)
        split = returns.in_turn(
            lambda some, k: returns.by_state(reward[some], bool(terminated[k]), discount[some]), reward, lengths
        )
    else:
        split = returns.n_step_many(reward, lengths, terminated, fields.discount, fields.n_step)
    if fields.faithful_truncation and truncated.any():
        reaches_end = split.cut == np.repeat(np.cumsum(lengths) - 1, lengths)
        split = split._replace(coefficient=np.where(reaches_end & truncated.repeat(lengths), 0.0, split.coefficient))
    return split
