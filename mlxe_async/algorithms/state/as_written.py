"""An update as the algorithm's own file writes it, and what it measured as plain numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.algorithms.state import drawing
from mlxe_async.maths import metrics

if TYPE_CHECKING:
    from mlxe_async.algorithms.interface import Clock, Metrics, Rows
    from mlxe_async.networks import Floats


def learned(algorithm: Any, batch: Rows, clock: Clock) -> tuple[Metrics, Floats | None]:
    """Have an algorithm learn from one batch by its own `update`.

    Returns:
        What was measured, as plain numbers, and new priorities (M,) if there are any. A tensor of several numbers is
        told by its quantiles, such as `advantage.p50`.

    Raises:
        TypeError: `update` returned something else.
    """
    modules = getattr(algorithm, "_modules", None)
    with drawing.learning(algorithm), contextlib.nullcontext() if modules is None else modules.learning():
        found = algorithm.update(batch, clock)
    pair = found if isinstance(found, tuple) else (found, None)
    if len(pair) != 2 or not isinstance(pair[0], Mapping):
        raise TypeError(
            f"{type(algorithm).__name__}.update returned a {type(found).__name__}, expected what was measured, "
            "name -> number, or that and new priorities"
        )
    measured, priorities = pair
    for name, value in measured.items():
        if not isinstance(value, float | int | np.generic) and not hasattr(value, "detach"):
            told = f"{type(algorithm).__name__}.update measured {name!r} as a {type(value).__name__}"
            raise TypeError(f"{told}, expected a number")
    if any(not isinstance(value, float | int) for value in measured.values()):
        measured = metrics.as_floats(metrics.spread(measured))
    if priorities is not None and not isinstance(priorities, np.ndarray):
        priorities = np.asarray(priorities.numpy(force=True) if hasattr(priorities, "numpy") else priorities)
    return measured, priorities
