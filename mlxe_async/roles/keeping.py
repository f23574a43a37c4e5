"""What a learner keeps beside the weights it publishes, so that a successor goes on where it was killed.

Published weights are what acts. What learns but does not act, such as the optimiser, targets, averages and generators,
is kept in shared memory before each publication, under the version that is about to be published. With it goes the
answer to the call that made this version: a supervisor that did not hear it asks again, and gets it without a second
update.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mlxe_async.roles.states import PREFIX, read_only, resumes, take_up
from mlxe_async.rows import Array

ANSWER_BYTES = 8192
SHARE = 0.01
"""Most of the time that keeping may take, where it may be left out."""


class Store(Protocol):
    """Where it lies, `ipc.shared.kept.KeptState`."""

    def keep(self, label: int, arrays: Mapping[str, Array], *, spare: int | None = None) -> None:
        """Write arrays under a label; those of the label `spare` stay."""

    def find(self, most: int) -> tuple[int, dict[str, Array]] | None:
        """The newest arrays whose label is at most `most`, and their label."""


@dataclass(frozen=True)
class Found:
    """What a learner left.

    Args:
        version: of the weights that were published with it.
        arrays: the algorithm's state, under names that begin with `algorithm.`, and `own`.
    """

    version: int
    arrays: dict[str, Array]

    @property
    def roll_backs(self) -> int:
        """Steps back in a row so far."""
        return int(self.arrays["roll_backs"])

    @property
    def promotion(self) -> Array | None:
        """What was known of the best version; None: nothing."""
        kept = self.arrays.get("promotion")
        return kept if kept is not None and kept.any() else None

    @property
    def call(self) -> tuple[int, dict[str, Any]]:
        """Number of the call that came last, 0 for none, and the answer to it."""
        text = self.arrays["answer"].tobytes().rstrip(b"\0")
        return int(self.arrays["call"]), json.loads(text) if text else {}

    @property
    def is_finite(self) -> bool:
        """True if no number of the algorithm's state is NaN or infinite."""
        numbers = (array for name, array in self.arrays.items() if name.startswith(PREFIX) and array.dtype.kind == "f")
        return all(bool(np.isfinite(array).all()) for array in numbers)


class StateKeeper:
    """Keeps an algorithm's state and finds it again.

    Args:
        store: where; None: nothing is kept.
        algorithm: the learning object.
        every: publications from one write to the next; 0: as few as keep writing below `SHARE` of the time.
        clock: seconds.
    """

    def __init__(
        self,
        store: Store | None,
        algorithm: Any,
        every: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._algorithm, self._every, self._clock = store, algorithm, every, clock
        self._version: int | None = None
        self._next_at = 0.0

    def is_due(self, version: int) -> bool:
        """Return whether the state is to be kept that belongs to this version; the first of a life always is."""
        if self._store is None:
            return False
        if self._version is None:
            return True
        return self._clock() >= self._next_at if not self._every else version - self._version >= self._every

    def keep(
        self,
        version: int,
        published: int,
        *,
        roll_backs: int,
        call: int,
        answer: Mapping[str, Any],
        promotion: Array | None = None,
    ) -> None:
        """Write all state down, as that of a version.

        Args:
            version: that is published, or about to be.
            published: newest version; what was kept of it is not overwritten.
            roll_backs: steps back in a row so far.
            call: number of the call that led here, 0 for none.
            answer: to that call, plain JSON.
            promotion: what is known of the best version, of the same shape each time; None: versions are not compared.
        """
        if self._store is None:
            return
        began = self._clock()
        arrays = {"roll_backs": np.array(roll_backs), "call": np.array(call), "answer": _answer_bytes(answer)}
        if promotion is not None:
            arrays["promotion"] = promotion
        if resumes(self._algorithm):
            arrays |= {PREFIX + name: array for name, array in read_only(self._algorithm).items()}
        self._store.keep(version, arrays, spare=published)
        self._version, ended = version, self._clock()
        self._next_at = ended + (ended - began) / SHARE

    def find(self, version: int) -> Found | None:
        """Return what was kept with this version, or else with the newest before."""
        found = self._store.find(version) if self._store is not None else None
        return Found(*found) if found is not None else None

    def take_up(self, found: Found, version: int, flat: Array) -> bool:
        """Have the algorithm go on from a version's weights (P,) and from what was kept with it or before.

        Returns:
            Whether it could; if not, nothing has changed.
        """
        if not resumes(self._algorithm):
            return False
        if found.version == version:
            return take_up(self._algorithm, found.arrays)
        go_on = getattr(self._algorithm, "restore_around", None)
        if not callable(go_on):
            return False
        state = {n.removeprefix(PREFIX): array for n, array in found.arrays.items() if n.startswith(PREFIX)}
        go_on(flat, state)
        return True


def _answer_bytes(answer: Mapping[str, Any]) -> Array:
    """An answer as JSON in `ANSWER_BYTES` bytes; one that is too long is kept without its metrics."""
    text = json.dumps(answer).encode() if answer else b""
    if len(text) > ANSWER_BYTES:
        text = json.dumps({**answer, "metrics": {}}).encode()
    return np.frombuffer(text.ljust(ANSWER_BYTES, b"\0"), np.uint8)
