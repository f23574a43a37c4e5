"""Simulated lag: executors act with older weights than the newest, by an exact number of versions.

The supervisor keeps the newest versions and publishes the oldest of them to the executors, in a segment of their own.
It holds them itself, so no death of an executor or of the learner loses one, and whole checkpoints save them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.errors import RunFailed

DELAYED = "delayed."
"""With the number of a version behind it, the name of its weights in a whole checkpoint."""


class Writer(Protocol):
    """The writing end of published weights, `ipc.shared.weights.WeightsWriter`."""

    @property
    def version(self) -> int:
        """Newest version, 0 before the first."""

    def begin_after(self, version: int) -> None:
        """Number what is published next `version` + 1."""

    def publish(self, vector: NDArray[np.float32]) -> int:
        """Make `vector` (P,) the newest version."""

    def release(self) -> None:
        """Let go of the shared memory."""


class DelayedWeights:
    """The weights that executors act with under `schedule.simulated_lag`.

    Args:
        lag: versions from the one they act with to the newest; the oldest one, while there are fewer.
        writer: publishes to the executors.
        newest: version and weights (P,) of the learner's newest publication; None when they cannot be read.
    """

    def __init__(self, lag: int, writer: Writer, newest: Callable[[], tuple[int, NDArray[np.float32]] | None]) -> None:
        self._writer, self._newest = writer, newest
        self._kept: deque[tuple[int, NDArray[np.float32]]] = deque(maxlen=lag + 1)

    @property
    def version(self) -> int:
        """The version that executors act with."""
        return self._writer.version

    def note_publication(self) -> None:
        """Hear that the learner has published a version.

        Raises:
            RunFailed: its weights cannot be read.
        """
        newest = self._newest()
        if newest is None:
            raise RunFailed(
                "schedule.simulated_lag: expected to read the weights that were published, got none that are whole"
            )
        self._keep(*newest)

    def state(self) -> dict[str, NDArray[np.float32]]:
        """The versions kept, by name; they must not change."""
        return {f"{DELAYED}{version}": flat for version, flat in self._kept}

    def restore(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Go on with versions that were kept; without any, with the learner's newest publication."""
        kept = {int(name.removeprefix(DELAYED)): flat for name, flat in arrays.items() if name.startswith(DELAYED)}
        for version in sorted(kept):
            self._keep(version, kept[version])
        if not kept:
            self.note_publication()

    def release(self) -> None:
        """Let go of the shared memory; executors are told of no version any more."""
        self._writer.release()

    def _keep(self, version: int, flat: NDArray[np.float32]) -> None:
        self._kept.append((version, flat))
        version, flat = self._kept[0]
        if version != self._writer.version:
            self._writer.begin_after(version - 1)  # versions that a run passed over have no weights
            self._writer.publish(flat)
