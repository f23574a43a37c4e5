"""Observations of a whole vector become arrays that are stored: what `observing` does to one, done to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from mlxe_async import parts as packing
from mlxe_async.parts import BYTES, FLOATS, Part
from mlxe_async.rows import MASK, Array
from mlxe_async.tasks import checks
from mlxe_async.tasks.hostile import described
from mlxe_async.tasks.observing import Leaf, Packing, label_of, reached

_Fill = Callable[[Any, Array, str], None]
"Checks what a leaf shows (B, ...) and writes it into the leaf's view."


class Batches:
    """Makes stored observations of those of a vector.

    Args:
        one: does it to one observation; says how each is stored.
    """

    def __init__(self, one: Packing) -> None:
        self._one = one
        self._is_bytes = one.dtype == BYTES
        self._leaves = [(leaf, part, _filling(leaf)) for leaf, part in one.leaves]

    def take(self, obs: Any, info: Any, rows: int, over: Array | None) -> Array:
        """Observations (B, O) as they are stored, in memory of their own.

        Args:
            obs: those of the vector.
            info: what came with them, for the mask.
            rows: B.
            over: whose episodes ended with them (B,): there a mask may be empty, and all is allowed; None: of none.

        Raises:
            checks.Broken: an observation or a mask is not what the space says.
        """
        stored = np.zeros((rows, *self._one.shape), self._one.dtype)
        with np.errstate(all="ignore"):  # what does not fit float32 is not finite, and found below
            for leaf, part, fill in self._leaves:
                view = self._view(part, stored)
                fill(reached(obs, leaf), view, label_of(leaf))
                if part.dtype == FLOATS:
                    _expect_finite(view, label_of(leaf))
        if self._one.mask is not None:
            self._take_mask(obs if self._one.shows_mask else info, stored, over)
        return stored

    def _view(self, part: Part, stored: Array) -> Array:
        view: Array = packing.view(part, stored, is_bytes=self._is_bytes)
        return view

    def _take_mask(self, shown: Any, stored: Array, over: Array | None) -> None:
        assert self._one.mask is not None  # noqa: S101 - see `take`
        part, choices = self._one.mask
        found = np.asarray(shown.get(MASK) if isinstance(shown, dict) else None)
        rows = len(stored)
        if found.dtype.kind not in "biuf" or found.size != rows * sum(choices) or not np.isin(found, (0, 1)).all():
            raise checks.Broken(f"{MASK}: expected {sum(choices)} of 0 or 1 of each of {rows}, got {described(found)}")
        allowed = found.reshape(rows, -1).astype(np.uint8)
        ended = np.zeros(rows, np.bool_) if over is None else over
        first = 0
        for size in choices:
            entry = allowed[:, first : first + size]
            nothing = ~entry.any(1)
            if (nothing & ~ended).any():
                env = int(np.flatnonzero(nothing & ~ended)[0])
                raise checks.Broken(f"{MASK} of environment {env}: expected at least one allowed choice, got none")
            entry[nothing] = 1
            first += size
        self._view(part, stored)[...] = allowed


def _expect_finite(view: Array, label: str) -> None:
    if not np.isfinite(view).all():
        env, *where = (int(n) for n in np.argwhere(~np.isfinite(view))[0])
        value = float(view[(env, *where)])
        raise checks.Broken(f"{label} of environment {env}: expected finite numbers, got {value} at {where}")


def _filling(leaf: Leaf) -> _Fill:
    space = leaf.space
    if isinstance(space, spaces.Box):
        shape, stored = tuple(map(int, space.shape)), np.dtype(leaf.form[2])
        return lambda value, view, label: _fill_box(value, view, label, shape, stored)
    if isinstance(space, spaces.MultiBinary):
        return _fill_binary
    discrete = isinstance(space, spaces.Discrete)
    sizes = np.array([space.n]) if discrete else space.nvec.ravel().astype(np.int64)
    starts = np.ravel(space.start).astype(np.int64)
    return lambda value, view, label: _fill_one_hots(value, view, label, sizes, starts)


def _fill_box(value: Any, view: Array, label: str, shape: tuple[int, ...], stored: np.dtype[Any]) -> None:
    array, _ = checks.observation(value, (len(view), *shape), stored, None, label)
    view[...] = array


def _fill_binary(value: Any, view: Array, label: str) -> None:
    array = np.asarray(value)
    if array.size != view.size or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise checks.Broken(f"{label}: expected 0 and 1 only, got {described(value)}")
    view[...] = array.reshape(view.shape)


def _fill_one_hots(value: Any, view: Array, label: str, sizes: Array, starts: Array) -> None:
    array = np.asarray(value)
    if array.size != len(view) * len(sizes) or array.dtype.kind not in "iub":
        raise checks.Broken(f"{label}: expected whole numbers of {len(view)} environments, got {described(value)}")
    indexes = array.reshape(len(view), len(sizes)).astype(np.int64) - starts
    wrong = ((indexes < 0) | (indexes >= sizes)).any(1)
    if wrong.any():
        env = int(np.flatnonzero(wrong)[0])
        raise checks.Broken(f"{label} of environment {env}: expected an entry of its space, got {array[env]}")
    view[np.arange(len(view))[:, None], np.cumsum(sizes) - sizes + indexes] = 1
