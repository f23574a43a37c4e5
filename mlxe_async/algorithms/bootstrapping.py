"""What algorithms share that learn from a replay memory: which rewards a row's target counts, and mirrored rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field, model_validator

from mlxe_async.algorithms import fields as keys
from mlxe_async.algorithms.acting import ActsByNetwork, shown
from mlxe_async.algorithms.interface import Rows, flat_observations, needs, needs_any
from mlxe_async.maths import returns, symmetry, vtrace
from mlxe_async.maths.returns import DiscountCurve
from mlxe_async.rows import Array, Column, Spaces

Share = Annotated[float, Field(ge=0, le=1)]


class ReturnFields(BaseModel):
    """How returns are counted."""

    returns: Literal["n_step", "steps_to_end", "state"] = Field(
        "n_step", description="steps_to_end: to the end, cautious near it, as MLxE; state: cautious near the limits."
    )
    n_step: int = keys.n_step(5, needs(returns=["n_step"], discount={"above": 0}))
    discount: float = keys.discount(0.99, needs(returns=["n_step", "state"]))
    discount_low: float = Field(
        0.5,
        ge=0,
        le=1,
        description="state: the discount where a limit is reached; higher blames earlier rows too.",
        json_schema_extra=needs(returns=["state"]),
    )
    discount_curve: tuple[Share, ...] = keys.key(
        *(tuple(DiscountCurve()), "steps_to_end: a, b, low, high of a + b ln k."),
        needs(returns=["steps_to_end"]),
        min_length=4,
        max_length=4,
    )
    return_scale: float = keys.return_scale(1.0, needs(value_scale=["return", "categorical"]))
    faithful_truncation: bool = Field(
        False,
        description="true: truncation ends the world, to reproduce MLxE's error.",
        json_schema_extra=needs_any(discount={"above": 0}, returns=["steps_to_end", "state"]),
    )

    @property
    def curve(self) -> DiscountCurve:
        """Of `returns = "steps_to_end"`."""
        return DiscountCurve(*self.discount_curve)


class CorrectionFields(ReturnFields):
    """What is done about rows that an older policy made, and what it leaves of the ways to count returns."""

    correction: Literal["vtrace", "clipped", "none"] = keys.key("clipped", "clipped: min(pi/mu, ratio_clip).")
    ratio_clip: float = keys.key(
        *(1.0, "Largest weight of a row; higher has less bias, more variance."),
        needs(correction=["vtrace", "clipped"]),
        gt=0,
    )

    @model_validator(mode="after")
    def _fit_together(self: Any) -> Any:
        *_, low, high = self.discount_curve
        if low > high:
            raise ValueError(f"discount_curve: got {low} for low and {high} for high, expected no more for low")
        if self.correction == "vtrace" and (self.returns != "n_step" or self.n_step < 2):
            raise ValueError('correction = "vtrace" makes its own targets: it needs returns = "n_step", n_step >= 2')
        if self.value_scale == "survival" and self.returns != "n_step":
            raise ValueError('value_scale = "survival" needs returns = "n_step": it has one discount')
        if self.value_scale == "categorical" and self.correction == "vtrace":
            raise ValueError('value_scale = "categorical" needs another correction than "vtrace", which corrects means')
        return self

    def refuse_spaces(self: Any, spaces: Spaces) -> None:
        """Refuse what these settings cannot learn from.

        Raises:
            ValueError: the task declares no limits.
        """
        if self.returns == "state" and not any(spaces.limits or ()):
            raise ValueError('algorithm.returns: "state" needs a task that declares the limits of its failure')


class Replays(ActsByNetwork):
    """Learns from single rows of a replay memory, or from windows of some, whose columns `columns` makes ready."""

    average: Any
    """The network that is published: a running average of `network`, or the same weights."""
    unused: int
    rows_seen: int
    needed: ClassVar[tuple[str, ...]] = ()
    """Further columns that the loss needs as they are stored."""
    successor = "cut_obs"
    """The column of the observations that are bootstrapped from."""

    def derive(self, segment: Rows) -> Rows:
        """The derived columns (L, ...) of a closed segment."""
        return self.derive_many(segment, np.array([len(segment["reward"])]))

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """See `interface.DerivesMany`."""
        raise NotImplementedError(f"{type(self).__name__} has no derive_many(segments, lengths)")

    def scaled(self, reward: Array) -> Array:
        """Rewards as values count them; of the survival scale 1 - discount for each step that was survived."""
        s = self.settings
        if s.value_scale == "survival":  # the sum of (1 - discount) discount^i over T steps is 1 - discount^T
            return np.full(reward.shape, 1 - s.discount, np.float32)
        return np.asarray(reward * s.return_scale)

    def one_per(self, every: int, new_rows: int) -> int:
        """Updates that are due now if there is one for so many new rows; remainders are kept."""
        due, self.unused = divmod(self.unused + new_rows, every)
        return due

    def mirrored(self, batch: Rows, following: str) -> tuple[Array, Array, Array]:
        """Observations and those called `following` as the network sees them (..., O), and actions (..., M).

        Half of the samples are mirrored if the task declares a symmetry and the settings want it; a window as a whole.
        """
        obs, after, action = batch["obs"], batch[following], batch["action"]
        if not (self.settings.mirror and self.spaces.symmetry):
            return self.shown_with(obs, self._moments), self.shown_with(after, self._moments), action
        obs, after = (flat_observations(one, self.spaces) for one in (obs, after))
        flipped: Array = self.rng.random(action.shape[-1:]) < 0.5
        obs, after, action = symmetry.mirror(obs, after, action, flipped, self.spaces.symmetry)
        return shown(obs, self._moments), shown(after, self._moments), action

    def tensors_of(self, batch: Rows) -> dict[str, Any]:
        """All columns of a batch, `columns` in place of those of the same names; time (if any) is merged into rows."""
        shape = batch["action"].shape
        known = {name: column for name, column in batch.items() if column.shape[: len(shape)] == shape}
        rows = known | self.columns(batch)
        return self.network.tensors({n: c.reshape(-1, *c.shape[len(shape) :]) for n, c in rows.items()})

    def columns(self, batch: Rows) -> Rows:
        """What the loss needs of a batch (M, ...) or (T, M, ...): half of the samples mirrored, weights, discounts."""
        s, (obs, following, action) = self.settings, self.mirrored(batch, self.successor)
        rows = {"obs": obs, self.successor: following, "action": action}
        rows |= {name: batch[name] for name in self.needed}
        rows["weight"] = batch.get("weight", np.ones(action.shape[-1]))
        if self.window == 1:
            return rows | {name: batch[name] for name in ("partial", "coefficient")}
        valid, ended, stopped = (batch[name].astype(bool) for name in ("valid", "terminated", "truncated"))
        rows |= {"weight": rows["weight"] * valid, "reward": self.scaled(batch["reward"])}
        ended |= stopped & s.faithful_truncation
        carry = vtrace.carry_mask(valid, ended, stopped).astype(np.float32)
        return rows | {"discount": s.discount * ~ended, "carry": carry}


def target_columns(spaces: Spaces) -> tuple[Column, ...]:
    """What `stored` makes."""
    cut = Column("cut_obs", spaces.observation_dtype, spaces.observation_shape)
    return (Column("partial", "<f4"), Column("coefficient", "<f4"), cut)


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
