"""What algorithms share that learn from a replay memory: which rewards a row's target counts, and mirrored rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxe_async.algorithms.interface import Rows, flat_observations
from mlxe_async.algorithms.parts.acting import ActsByNetwork, shown
from mlxe_async.maths import returns, symmetry
from mlxe_async.rows import Array, Column, Spaces


class Replays(ActsByNetwork):
    """Learns from rows of a replay memory, whose columns `columns` makes ready."""

    average: Any
    """The network that is published: a running average of `network`, or the same weights."""
    unused: int
    rows_seen: int
    successor = "cut_obs"
    """The column of the observations that are bootstrapped from."""

    def derive(self, segment: Rows) -> Rows:
        """The derived columns (L, ...) of a closed segment."""
        return self.derive_many(segment, np.array([len(segment["reward"])]))

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """See `interface.DerivesMany`."""
        raise NotImplementedError(f"{type(self).__name__} has no derive_many(segments, lengths)")

    def scaled(self, reward: Array) -> Array:
        """Rewards as values count them."""
        return np.asarray(reward * self.settings.return_scale)

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
        """What the loss needs of a batch (M, ...): half of the samples mirrored, weights, and what targets are made of.

        Of windows (T, M, ...) there are observations, actions and weights.
        """
        obs, following, action = self.mirrored(batch, self.successor)
        rows = {"obs": obs, self.successor: following, "action": action}
        rows["weight"] = batch.get("weight", np.ones(action.shape[-1]))
        if self.window > 1:
            return rows
        return rows | {name: batch[name] for name in ("partial", "coefficient")}


def survived(reward: Array, discount: float) -> Array:
    """Instead of rewards (N,): 1 - discount for each step that was survived, which sum to 1 - discount^T in T steps."""
    return np.full(reward.shape, 1 - discount, np.float32)


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
