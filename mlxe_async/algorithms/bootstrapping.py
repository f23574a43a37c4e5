"""Which rewards a row's target counts, how much of each, and where the critic's word is taken for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from mlxe_async.maths import returns
from mlxe_async.rows import Array


class ReturnFields(BaseModel):
    """How returns are counted."""

    returns: Literal["n_step", "steps_to_end", "state"] = Field(
        "n_step", description="steps_to_end: to the end, cautious near it, as MLxE; state: cautious near the limits."
    )
    n_step: int = Field(5, ge=1, le=100_000, description="Higher trusts rewards more and the critic less.")
    discount: float = Field(0.99, ge=0, le=1, description="Higher looks further ahead, with noisier returns.")
    discount_low: float = Field(
        0.5, ge=0, le=1, description="state: the discount where a limit is reached; higher blames earlier rows too."
    )
    return_scale: float = Field(1.0, gt=0, description="Factor for rewards; higher drowns the entropy bonus.")
    faithful_truncation: bool = Field(False, description="true: truncation ends the world, to reproduce MLxE's error.")


def partial_return(
    fields: ReturnFields,
    reward: Array,
    terminated: bool,
    truncated: bool,
    obs: Array,
    limits: Sequence[float | None] | None,
) -> returns.PartialReturn:
    """Targets partial + coefficient * V(next_obs[cut]) of a segment (L,).

    Args:
        fields: how to count.
        reward: rewards (L,).
        terminated: whether the world ended with the last row.
        truncated: whether the episode was cut there.
        obs: observations (L, O), flattened.
        limits: what the task declares as failure, for `returns = "state"`.
    """
    if fields.returns == "steps_to_end":
        split = returns.steps_to_end(reward, terminated)
    elif fields.returns == "state":
        discount = returns.state_discount(obs, limits or (), fields.discount_low, fields.discount)
        split = returns.by_state(reward, terminated, discount)
    else:
        split = returns.n_step(reward, terminated, fields.discount, fields.n_step)
    if truncated and fields.faithful_truncation:
        reaches_end = split.cut == len(reward) - 1
        split = split._replace(coefficient=np.where(reaches_end, 0.0, split.coefficient))
    return split
