"""Which rewards a row's target counts, how much of each, and where the critic's word is taken for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from mlxe_async.algorithms.interface import DerivesMany, Rows, needs, needs_any
from mlxe_async.maths import returns
from mlxe_async.rows import Array


class ReturnFields(BaseModel):
    """How returns are counted."""

    returns: Literal["n_step", "steps_to_end", "state"] = Field(
        "n_step", description="steps_to_end: to the end, cautious near it, as MLxE; state: cautious near the limits."
    )
    n_step: int = Field(
        5,
        ge=1,
        le=100_000,
        description="Higher trusts rewards more and the critic less.",
        json_schema_extra=needs(returns=["n_step"], discount={"above": 0}),
    )
    discount: float = Field(
        0.99,
        ge=0,
        le=1,
        description="Higher looks further ahead, with noisier returns.",
        json_schema_extra=needs(returns=["n_step", "state"]),
    )
    discount_low: float = Field(
        0.5,
        ge=0,
        le=1,
        description="state: the discount where a limit is reached; higher blames earlier rows too.",
        json_schema_extra=needs(returns=["state"]),
    )
    return_scale: float = Field(
        1.0,
        gt=0,
        description="Factor for rewards; higher drowns the entropy bonus.",
        json_schema_extra=needs(value_scale=["return", "categorical"]),
    )
    faithful_truncation: bool = Field(
        False,
        description="true: truncation ends the world, to reproduce MLxE's error.",
        json_schema_extra=needs_any(discount={"above": 0}, returns=["steps_to_end", "state"]),
    )


class DerivesTogether:
    """`interface.Algorithm.derive` by way of `interface.DerivesMany.derive_many`, which is the algorithm's own."""

    def derive(self: DerivesMany, segment: Rows) -> Rows:
        """The derived columns (L, ...) of a closed segment."""
        return self.derive_many(segment, np.array([len(segment["reward"])]))


def ends_of(segments: Rows, lengths: Array) -> tuple[Array, Array]:
    """Whether segments of these lengths (S,), one after the other, end with a terminated and a truncated row (S,)."""
    last = np.cumsum(lengths) - 1
    return segments["terminated"][last].astype(bool), segments["truncated"][last].astype(bool)


def stored(split: returns.PartialReturn, next_obs: Array) -> Rows:
    """The columns `partial`, `coefficient` (N,) and `cut_obs` (N, ...) of returns of rows with these `next_obs`."""
    known = {"partial": split.partial.astype(np.float32), "coefficient": split.coefficient.astype(np.float32)}
    return known | {"cut_obs": next_obs.take(split.cut, axis=0)}


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
        split = returns.in_turn(
            lambda some, k: returns.steps_to_end(reward[some], bool(terminated[k])), reward, lengths
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
