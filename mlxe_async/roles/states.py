"""Taking up what an algorithm of a former process told of its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlxe_async.algorithms.interface import Algorithm
from mlxe_async.errors import MlxeError
from mlxe_async.rows import Array

PREFIX = "algorithm."


def resumes(algorithm: Any) -> bool:
    """Return whether an algorithm can tell its state and take it up; see `algorithms.interface.Algorithm`."""
    return callable(getattr(algorithm, "state", None)) and callable(getattr(algorithm, "restore", None))


def read_only(algorithm: Any) -> dict[str, Array]:
    """Return an algorithm's state, to be written down at once; one that derives from `Algorithm` copies nothing."""
    found = algorithm.state(copied=False) if isinstance(algorithm, Algorithm) else algorithm.state()
    return dict(found)


def expect_like(who: str, state: Mapping[str, Array], like: Mapping[str, Array]) -> None:
    """See that saved arrays are of the shapes and kinds of those that a role has now.

    Args:
        who: the role, for the message.
        state: the saved arrays, by name; it may have others.
        like: those of now.

    Raises:
        MlxeError: one is missing or another; the message names it.
    """
    for name, mine in like.items():
        saved = state.get(name)
        if saved is None or (saved.shape, saved.dtype.kind) != (mine.shape, mine.dtype.kind):
            got = "nothing" if saved is None else f"{saved.dtype} of shape {saved.shape}"
            raise MlxeError(f"{who} going on: {name}: got {got}, expected {mine.dtype} of shape {mine.shape}")


def expect_counts(who: str, state: Mapping[str, Array], names: Sequence[str]) -> None:
    """See that saved arrays hold whole numbers from 0 to 2^53.

    Raises:
        MlxeError: one does not; the message names it.
    """
    for name in names:
        saved = state.get(name)
        if saved is None or saved.dtype.kind not in "iu" or not ((saved >= 0) & (saved <= 2**53)).all():
            got = "nothing" if saved is None else f"{saved.dtype} {saved.ravel()[:8].tolist()}"
            raise MlxeError(f"{who} going on: {name}: got {got}, expected whole numbers from 0 to 2^53")


def expect_numbers(who: str, state: Mapping[str, Array]) -> None:
    """See that none of an algorithm's saved numbers is NaN.

    Raises:
        MlxeError: one is; the message names it.
    """
    for name, saved in state.items():
        if name.startswith(PREFIX) and saved.dtype.kind == "f" and np.isnan(saved).any():
            raise MlxeError(f"{who} going on: {name}: got NaN, expected numbers")


def take_up(algorithm: Any, state: Mapping[str, Array]) -> bool:
    """Give an algorithm the arrays of a state whose names begin with `algorithm.`.

    Returns:
        Whether the algorithm can take up a state at all.

    Raises:
        MlxeError: the state is of an algorithm of another shape.
    """
    if not resumes(algorithm):
        return False
    known = {name.removeprefix(PREFIX): array for name, array in state.items() if name.startswith(PREFIX)}
    shapes = {name: (array.shape, array.dtype.kind) for name, array in known.items()}
    expected = {name: (array.shape, array.dtype.kind) for name, array in algorithm.state().items()}
    if shapes != expected:
        odd = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))
        raise MlxeError(f"{type(algorithm).__name__} going on: its saved state has others than expected of {odd}")
    algorithm.restore(known)
    return True
