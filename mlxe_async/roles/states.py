"""Taking up what an algorithm of a former process told of its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxe_async.errors import MlxeError
from mlxe_async.rows import Array

PREFIX = "algorithm."


def resumes(algorithm: Any) -> bool:
    """Whether an algorithm can tell its state and take it up; see `algorithms.interface.Resumable`."""
    return callable(getattr(algorithm, "state", None)) and callable(getattr(algorithm, "restore", None))


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
    shapes = {name: array.shape for name, array in known.items()}
    expected = {name: array.shape for name, array in algorithm.state().items()}
    if shapes != expected:
        odd = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))
        raise MlxeError(f"{type(algorithm).__name__} going on: its saved state has others than expected of {odd}")
    algorithm.restore(known)
    return True
