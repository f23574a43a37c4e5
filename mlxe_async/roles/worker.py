"""A worker beside the learner: it takes the learner's steps, from its own part of the rows, and publishes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from mlxe_async.errors import MlxeError, NonFiniteWeights
from mlxe_async.roles.learner import Learner
from mlxe_async.rows import Array

NOTHING = -1


class WeightsIn(Protocol):
    """The reading end of the published weights, `ipc.shared.weights.WeightsReader`."""

    def latest(self) -> int:
        """Newest version."""

    def read(self, out: Array) -> int | None:
        """Copy the newest weights (P,); their version, or None where they could not be had whole."""


class Followed:
    """Counts the versions that a worker has come to, where the learner publishes them."""

    def __init__(self) -> None:
        self.version = NOTHING

    def publish(self, vector: Array) -> int:
        """Count a version.

        Raises:
            NonFiniteWeights: it holds a NaN or an infinity, as it does for the learner.
        """
        if not np.isfinite(vector).all():
            raise NonFiniteWeights("a worker's weights are not finite")
        self.version += 1
        return self.version


class KeptElsewhere:
    """Finds what the learner keeps; a worker keeps nothing.

    Args:
        find: the newest arrays whose label is at most a number, and their label; see `ipc.shared.kept.KeptState`.
    """

    def __init__(self, find: Callable[[int], tuple[int, dict[str, Array]] | None]) -> None:
        self.find = find

    def keep(self, label: int, arrays: Mapping[str, Array], *, spare: int | None = None) -> None:
        """Leave that to the learner."""


class Worker(Learner):
    """Learns what the learner learns, see `roles.team`.

    Args:
        published: the learner's weights.
        parameters: how many they are.
        how: as for `Learner`, with `weights` of `Followed` and a `store` of `KeptElsewhere`.
    """

    def __init__(self, published: WeightsIn, parameters: int, **how: Any) -> None:
        super().__init__(**how)
        self._followed: Followed = how["weights"]
        self._published, self._flat = published, np.zeros(parameters, np.float32)

    def learn(self, plan: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        """Learn as the learner does, from the state that it published last.

        Raises:
            MlxeError: that state cannot be had.
        """
        newest = self._published.latest()
        if self._followed.version != newest:
            self._catch_up(newest)
        self._call = 0  # asked again, it learns again: the learner may not have published
        try:
            return super().learn(plan, **how)
        except BaseException:
            self._followed.version = NOTHING
            raise

    def _catch_up(self, version: int) -> None:
        found = self._keeper.find(version)
        read = self._published.read(self._flat)
        if read != version or found is None or found.version != version:
            raise MlxeError(
                f"worker: expected to read weights {version} and the learner's state that belongs to them, got weights "
                f"{read} and the state of {None if found is None else found.version}"
            )
        self._followed.version = version
        self._last_good = self._flat.copy()
        self._take_up(self._last_good)
        self._has_learned = True
