"""Running mean and variance of observations, and what a network is shown instead of the raw numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LIMIT = 10.0
EPSILON = 1e-8


class Moments(NamedTuple):
    """Mean and variance per entry (O,) of so many rows of observations."""

    mean: NDArray[np.floating]
    variance: NDArray[np.floating]
    rows: float


def nothing(inputs: int) -> Moments:
    """The moments of no rows: observations of so many entries are shown as they are."""
    return Moments(np.zeros(inputs), np.ones(inputs), 0.0)


def parameters(inputs: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of moments in a flat vector, to travel with the weights that were learned with them."""
    return ("normaliser.mean", (inputs,)), ("normaliser.variance", (inputs,)), ("normaliser.log_rows", (1,))


def pack(moments: Moments) -> NDArray[np.float32]:
    """Moments as one vector (2 O + 1,); the count as log(1 + rows), which single precision can hold."""
    return np.concatenate([moments.mean, moments.variance, [np.log1p(moments.rows)]], dtype=np.float32)


def unpack(flat: NDArray[np.floating]) -> Moments:
    """The inverse of `pack`, for one vector (2 O + 1,) or a stack (V, 2 O + 1); the rows are those of the first."""
    mean, variance, log_rows = np.split(np.array(flat), [flat.shape[-1] // 2, flat.shape[-1] - 1], axis=-1)
    return Moments(mean, variance, float(np.expm1(log_rows.flat[0])))


def merge(known: Moments, rows: NDArray[np.floating]) -> Moments:
    """The moments of all observations so far and of new rows (N, O) together; Chan, Golub and LeVeque 1979.

    With `known.rows` 0 these are the moments of the rows alone; without rows nothing changes.
    """
    if rows.ndim != 2 or rows.shape[1:] != known.mean.shape:
        raise ValueError(f"merge: expected rows (N, {len(known.mean)}), got {rows.shape}")
    if not len(rows):
        return known
    values = rows.astype(np.float64)
    return joined(known, Moments(values.mean(0), values.var(0), len(rows)))


def joined(known: Moments, more: Moments) -> Moments:
    """The moments of two sets of observations together, such as those of two executors; Chan et al. 1979."""
    total = known.rows + more.rows
    if not total:
        return known
    shift = more.mean - known.mean
    squares = known.variance * known.rows + more.variance * more.rows + shift**2 * (known.rows * more.rows / total)
    return Moments(known.mean + shift * (more.rows / total), squares / total, total)


def normalise(
    obs: NDArray[np.floating], mean: NDArray[np.floating], variance: NDArray[np.floating]
) -> NDArray[np.float32]:
    """(obs - mean) / standard deviation, clipped to +-10: an entry never seen to vary stays harmless when it does.

    `mean` and `variance` (..., O) broadcast against `obs` (..., O).
    """
    shown = (obs - mean) / np.sqrt(variance + EPSILON)
    result: NDArray[np.float32] = shown.clip(-LIMIT, LIMIT).astype(np.float32)
    return result


def state(moments: Moments | None) -> dict[str, NDArray[Any]]:
    """Moments by name, to be kept as precise as they are; nothing for None.

    Those that came with weights are in single precision until the first rows are merged.
    """
    if moments is None:
        return {}
    known = {f"moments.{name}": np.array(value, np.float64) for name, value in moments._asdict().items()}
    return known | {"moments.single": np.array(moments.mean.dtype == np.float32)}


def restored(state: Mapping[str, NDArray[Any]]) -> Moments | None:
    """The inverse of `state`."""
    if "moments.mean" not in state:
        return None
    kind: type[np.floating] = np.float32 if state["moments.single"] else np.float64
    mean, variance = (state[f"moments.{name}"].astype(kind) for name in ("mean", "variance"))
    return Moments(mean, variance, float(state["moments.rows"]))
