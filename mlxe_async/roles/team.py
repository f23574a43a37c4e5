"""Workers that make each update together: each learns from its part of the rows, and all take the same steps.

The learner is worker 0. It alone publishes, and keeps the state that all have in common; so a worker that begins, or
that was in an attempt that broke, takes up what the learner published and kept last.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.interface import Algorithm, Clock
from mlxe_async.algorithms.state import drawing
from mlxe_async.algorithms.state.backward import ExchangesGradients
from mlxe_async.errors import MlxeError, StepsDiffer
from mlxe_async.maths import together
from mlxe_async.seeds import derive_seed

TOLD_BYTES = 8192


class Attempts(together.Group, Protocol):
    """A group whose updates may be broken off and made again, `ipc.shared.meeting.Meeting`."""

    @property
    def index(self) -> int:
        """Which of the workers this is."""

    def begin(self, attempt: int) -> None:
        """Begin an attempt, numbered from 1."""


class Team:
    """One worker's place among those that learn together.

    Args:
        group: exchanges numbers with the others.
        seed: of the run.
    """

    def __init__(self, group: Attempts, seed: int) -> None:
        self._group, self._seed = group, seed
        self._exchanges, self._is_first = ExchangesGradients(), False

    @property
    def part(self) -> tuple[int, int]:
        """Which part of the rows is this worker's, and of how many."""
        return self._group.index, self._group.workers

    @contextlib.contextmanager
    def learning(self, algorithm: Any, clock: Clock, attempt: int, *, twin: bool) -> Iterator[None]:
        """Learn together inside; `twin`: by a fast twin, which exchanges its gradients by itself.

        Each worker but the learner draws random numbers of its own, which follow from the seed and the clock alone.

        Raises:
            MlxeError: the algorithm is not derived from `Algorithm`, whose leaves and generators are known.
        """
        index, self._is_first = self._group.index, clock.updates == 0
        if not isinstance(algorithm, Algorithm):
            raise MlxeError(
                f"algorithm.name: {type(algorithm).__name__} is not derived from Algorithm, expected so with "
                'schedule.gradients = "executors"'
            )
        if index:
            drawing.reseed(algorithm, derive_seed(self._seed, "worker", index, clock.version, clock.updates))
        if not twin:
            self._exchanges.follow(algorithm)
        self._group.begin(attempt)
        with together.learning_in(self._group):
            yield

    def agreed(self, algorithm: Any, done: Mapping[str, Any]) -> dict[str, Any]:
        """End an update: what all workers learned from, given what this one did, as `Learner` reports it.

        `finite` is true if the losses of all are. It is the same for each of them.

        Raises:
            StepsDiffer: they made no gradient, or their weights are no longer the same.
        """
        if done["updates"] and self._is_first and not together.gradients_made():
            raise StepsDiffer(
                f"{type(algorithm).__name__} has learned without a gradient of `backward`, expected one to exchange: "
                'try schedule.gradients = "learner"'
            )
        norm = float(np.linalg.norm(algorithm.weights().astype(np.float64)))
        told = [_read(one) for one in self._group.give(together.END, _written({"norm": norm, "done": {**done}}))()]
        norms = [one["norm"] for one in told]
        if any(math.isfinite(one) and one != norms[0] for one in norms):
            raise StepsDiffer(
                f"{type(algorithm).__name__}: after an update the workers' weights have the norms "
                f"{', '.join(f'{one:.9g}' for one in norms)}, expected one: what `update` changes by other means than "
                "gradients must come from `maths.together`, or follow from the clock"
            )
        return merged([one["done"] for one in told])


def _written(told: dict[str, Any]) -> NDArray[np.uint8]:
    """JSON in `TOLD_BYTES` bytes; what is too long is told without its metrics."""
    text = json.dumps(told).encode()
    if len(text) > TOLD_BYTES:
        text = json.dumps(told | {"done": told["done"] | {"metrics": {}}}).encode()
    return np.frombuffer(text.ljust(TOLD_BYTES), np.uint8)


def _read(told: NDArray[np.uint8]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told.tobytes())
    return found


def merged(known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the reports of workers together: rows added, metrics averaged by rows."""
    first, some = dict(known[0]), [one for one in known if one["rows"]]
    first["finite"] = all(one["finite"] for one in known)
    first |= {name: sum(one[name] for one in known) for name in ("rows", "late_rows", "dropped_rows")}
    if not some:
        return first
    rows = [one["rows"] / first["rows"] for one in some]
    first |= {"lag_min": min(one["lag_min"] for one in some), "lag_max": max(one["lag_max"] for one in some)}
    first["lag_mean"] = sum(one["lag_mean"] * share for one, share in zip(some, rows, strict=True))
    metrics = {}
    for name in some[0]["metrics"]:
        found = [one["metrics"].get(name) for one in some]
        metrics[name] = None if None in found else sum(x * share for x, share in zip(found, rows, strict=True))
    return first | {"metrics": metrics}
