"""Code of algorithms that learn from a replay memory: the rewards that a row's target counts, and mirrored rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.interface import Algorithm, Rows
from mlxe_async.maths import returns, symmetry
from mlxe_async.maths.normaliser import Moments
from mlxe_async.networks import Floats
from mlxe_async.networks.mixed import mixed_of
from mlxe_async.rows import Array, Column, Spaces


def mirrored(algorithm: Algorithm, batch: Rows, following: str) -> tuple[Array, Array, Array]:
    """Observations and those called `following` (..., *O), and actions (..., M), of a batch.

    Observations of several parts that were mirrored are vectors (..., F), which `bodies.Body` knows from stored ones.
    Half of the samples are mirrored if the task declares a symmetry and the settings want it; a window as a whole.
    """
    obs, after, action = batch["obs"], batch[following], batch["action"]
    s: Any = algorithm.settings
    if not (s.mirror and algorithm.spaces.symmetry):
        return obs, after, action
    flat, flat_after = (flat_observations(one, algorithm.spaces) for one in (obs, after))
    flipped: Array = algorithm.rng.random(action.shape[-1:]) < 0.5
    flat, flat_after, action = symmetry.mirror(flat, flat_after, action, flipped, algorithm.spaces.symmetry)
    if not algorithm.spaces.parts:
        flat, flat_after = flat.reshape(obs.shape), flat_after.reshape(after.shape)
    return flat, flat_after, action


def flat_observations(obs: NDArray[Any], spaces: Spaces) -> NDArray[Any]:
    """Observations (..., *O) with the observation's axes merged into one: (..., prod O); of several parts as floats."""
    if spaces.parts:
        return np.asarray(spaces.vector(obs))
    if len(spaces.observation_shape) == 1:
        return obs
    lead = obs.ndim - len(spaces.observation_shape)
    return obs.reshape((*obs.shape[:lead], int(np.prod(spaces.observation_shape))))


def tensors_of(algorithm: Any, batch: Rows) -> dict[str, Any]:
    """All columns of a batch, `columns` in place of those of the same names; time (if any) is merged into rows."""
    shape = batch["action"].shape
    known = {name: column for name, column in batch.items() if column.shape[: len(shape)] == shape}
    rows = known | algorithm.columns(batch)
    found: dict[str, Any] = algorithm.tensors({n: c.reshape(-1, *c.shape[len(shape) :]) for n, c in rows.items()})
    return found


def survived(reward: Array, discount: float) -> Array:
    """Instead of rewards (N,): 1 - discount for each step that was survived, which sum to 1 - discount^T in T steps."""
    return np.full(reward.shape, 1 - discount, np.float32)


def target_columns(spaces: Spaces) -> tuple[Column, ...]:
    """Return the columns that `stored` fills."""
    cut = Column("cut_obs", spaces.observation_dtype, spaces.observation_shape)
    return (Column("partial", "<f4"), Column("coefficient", "<f4"), cut)


def ends_of(segments: Rows, lengths: Array) -> tuple[Array, Array]:
    """Tell which segments of these lengths (S,) end with a terminated, and which with a truncated row (S,)."""
    last = np.cumsum(lengths) - 1
    return segments["terminated"][last].astype(bool), segments["truncated"][last].astype(bool)


def stored(split: returns.PartialReturn, next_obs: Array) -> Rows:
    """The columns `partial`, `coefficient` (N,) and `cut_obs` (N, ...) of returns of rows with these `next_obs`."""
    known = {"partial": split.partial.astype(np.float32), "coefficient": split.coefficient.astype(np.float32)}
    return known | {"cut_obs": next_obs.take(split.cut, axis=0)}


def refuse_moments(spaces: Spaces, s: Any) -> None:
    """Refuse to normalise what a replay memory cannot count.

    Raises:
        ValueError: numbers are parts of bytes, and need moving to be counted.
    """
    if not s.normalise or not spaces.parts or spaces.observation_dtype != "|u1":
        return
    mixed = mixed_of(spaces, getattr(s, "body", "none"))
    if mixed is None or not mixed.is_counted_as_stored:
        raise ValueError(
            "algorithm.normalise: a replay memory keeps no moments of numbers that are parts of bytes; set it to false"
        )


def moments_in(algorithm: Algorithm, flat: Floats, place: str) -> Moments:
    """The moments of a `Normaliser` of this place in published weights (P,)."""
    mean, variance, rows = (algorithm.published(flat, f"{place}.{name}") for name in Moments._fields)
    return Moments(mean, variance, float(rows))
