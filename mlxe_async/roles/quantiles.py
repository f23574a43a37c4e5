"""Quantiles of actions, weights and gradients, on request: read after an update, where they are, for the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlxe_async.algorithms.interface import Clock
from mlxe_async.algorithms.state.gradients import gradients_of
from mlxe_async.rows import Array

PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99)
MOST_NUMBERS = 1 << 20
"""Numbers that are sorted at most: each k-th, where there are more. The least and the greatest are those of all."""
MOST_PARTS = 32
"""Parameters, or components of an action, that have quantiles of their own: the largest, or the first."""
MOST_ACTIONS = 256
"""Discrete actions whose shares are told."""


class Quantiles:
    """Tells them with the first publication after each `every` updates.

    Args:
        algorithm: the learner's object.
        every: updates from one account to the next.
        notify: sends a notice up.
    """

    def __init__(self, algorithm: Any, every: int, notify: Callable[[dict[str, Any]], None]) -> None:
        self._algorithm, self._every, self._notify = algorithm, every, notify
        self._read: dict[str, Any] | None = None
        self._is_told = False

    def learned(self, batch: Mapping[str, Array], clock: Clock, updates: int) -> None:
        """Read what was learned from last, and the gradient of that, if it is time to.

        Args:
            batch: of the last update; empty where its rows are elsewhere, then nothing is told of actions.
            clock: before the first.
            updates: since.
        """
        self._read = None
        if (clock.updates + updates) // self._every == clock.updates // self._every:
            return
        slopes = gradients_of(self._algorithm)
        if not slopes and not self._is_told:
            self._is_told = True
            name = type(self._algorithm).__name__
            sentence = f"logs.quantiles_every: {name} leaves no gradients behind after an update, so none are told of"
            self._notify({"kind": "remark", "detail": sentence})
        self._read = {
            "version": clock.version + 1,
            "updates": clock.updates + updates,
            "env_steps": clock.env_steps,
            "numbers": {**_actions(batch), **_whole_and_parts("gradients", slopes)},
            "shares": _shares(batch),
        }

    def published(self, vector: Array, version: int) -> None:
        """Tell what was read, and the quantiles of the weights (P,) that are published as this version."""
        read, self._read = self._read, None
        if read is None or read["version"] != version:
            return
        numbers = {**read.pop("numbers"), **_whole_and_parts("weights", _parameters(self._algorithm, vector))}
        told = {name: quantiles(one) for name, one in numbers.items() if one.size}
        sizes = {name: int(numbers[name].size) for name in told}
        self._notify({"kind": "quantiles", **read, "values": told, "counts": sizes})


def quantiles(numbers: Array) -> dict[str, float | None]:
    """`min`, `p1` to `p99` and `max` of numbers (N,), in between two of them by a line; None for what is not finite."""
    some = numbers[:: -(-numbers.size // MOST_NUMBERS)]
    with np.errstate(all="ignore"):
        between = np.percentile(some.astype(np.float64), PERCENTS)
    named = [(f"p{percent}", one) for percent, one in zip(PERCENTS, between, strict=True)]
    # As many digits as weights in single precision have.
    told = [("min", numbers.min()), *named, ("max", numbers.max())]
    return {name: float(f"{one:.7g}") if np.isfinite(one) else None for name, one in told}


def _actions(batch: Mapping[str, Array]) -> dict[str, Array]:
    if not batch:
        return {}
    action = _rows(batch)
    whole = {"actions": action.reshape(-1)}
    if action.shape[1] == 1:
        return whole
    return whole | {f"actions/{k}": action[:, k] for k in range(min(MOST_PARTS, action.shape[1]))}


def _shares(batch: Mapping[str, Array]) -> dict[str, list[float]]:
    """The part of rows with each Discrete action, from 0 on."""
    action = _rows(batch) if batch else np.zeros((0, 1))
    if action.dtype.kind not in "iu" or action.shape[1] != 1 or not action.size:
        return {}
    if action.min() < 0 or action.max() >= MOST_ACTIONS:
        return {}
    counted = np.bincount(action[:, 0].astype(np.int64))
    return {"actions": (counted / counted.sum()).tolist()}


def _rows(batch: Mapping[str, Array]) -> Array:
    """The actions (N, A) of a batch's rows, without padding."""
    action = batch["action"]
    if "valid" in batch:
        action = action[batch["valid"].astype(bool)]
    return action.reshape(len(action), -1)


def _parameters(algorithm: Any, vector: Array) -> dict[str, Array]:
    """The numbers of each published parameter; of all, where the names do not fit."""
    found, start = dict[str, Array](), 0
    for name, shape in getattr(algorithm, "parameters", ()):
        stop = start + int(np.prod(shape))
        found[name], start = vector[start:stop], stop
    return found if start == len(vector) else {"": vector}


def _whole_and_parts(kind: str, parts: Mapping[str, Array]) -> dict[str, Array]:
    """All numbers under the kind, and those of the largest parts under `kind/name`."""
    if not parts:
        return {}
    largest = sorted(parts, key=lambda name: -parts[name].size)[:MOST_PARTS]
    named = {f"{kind}/{name}": parts[name] for name in parts if name and name in largest}
    return {kind: np.concatenate([*parts.values()]), **(named if len(parts) > 1 else {})}
