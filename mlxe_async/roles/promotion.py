"""Promote best: after a while without a better training result the learner goes back to the best version so far.

The training result of an iteration is the mean return (by the environment's own rewards, so on CartPole the number of
steps) of the episodes that were finished in it, or the sum of their steps over all executors, and belongs to the
version they were played under. MLxE resets its learner like this as an option. Under `oa` the
supervisor says what an iteration is (`supervisor.handles.context.Promoter`), and executors put what they played with
on the shelf.

What is known of the best version lives in shared memory in the form in which weights are published, three numbers
behind the weights: its result, its version, and the iterations since. They change together, so that a learner after a
restart goes on counting where its predecessor was killed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mlxe_async.rows import Array

REMARKS = 3
"""Numbers behind the weights on the shelf."""
_RESULT, _VERSION, _SINCE = -3, -2, -1
LARGEST = float(np.finfo(np.float32).max)


class Shelf(Protocol):
    """Where the best version is kept, `ipc.shared.weights.WeightsWriter`."""

    def publish(self, vector: Array) -> int:
        """Replace what lies there by `vector` (P + `REMARKS`,)."""


class Promotion:
    """Compares training results and says when to go back.

    Args:
        patience: iterations without a better result after which to go back, at least 1.
        shelf: where the best version is kept.
        kept: what lies there (P + `REMARKS`,), from a predecessor; None when nothing does.
    """

    def __init__(self, patience: int, shelf: Shelf, kept: Array | None = None) -> None:
        self._patience, self._shelf, self._kept = patience, shelf, kept

    @property
    def best(self) -> Array | None:
        """Weights (P,) of the best version, a copy; None as long as there is no result."""
        return None if self._kept is None else self._kept[:-REMARKS].copy()

    @property
    def kept(self) -> Array | None:
        """What lies on the shelf (P + `REMARKS`,), as it is."""
        return self._kept

    def known(self, parameters: int) -> Array:
        """The same, (parameters + `REMARKS`,) also when nothing lies there: then all are 0."""
        return np.zeros(parameters + REMARKS, np.float32) if self._kept is None else self._kept

    def go_on(self, kept: Array | None) -> None:
        """Take up what lay on the shelf of a former run, or of this one some time ago; None: nothing."""
        self._kept = None if kept is None else np.array(kept, np.float32)
        if self._kept is not None:
            self._shelf.publish(self._kept)

    def judge(self, result: float, version: int, flat: Array) -> dict[str, Any] | None:
        """Hear the training result of the weights (P,) of a version; the best of two alike is the older one.

        Returns:
            None, or, when it is time to go back: `best_version`, its `result`, and the `iterations` since. They are
            counted from 0 again.
        """
        result = float(np.float32(np.clip(result, -LARGEST, LARGEST)))
        kept = self._kept
        if kept is None or result > kept[_RESULT]:
            kept = remarked(flat, result, version)
        else:
            kept = kept.copy()
            kept[_SINCE] += 1
        back = None
        if kept[_SINCE] >= self._patience:
            back = {
                "best_version": int(kept[_VERSION]),
                "result": float(kept[_RESULT]),
                "iterations": int(kept[_SINCE]),
            }
            kept[_SINCE] = 0
        self._shelf.publish(kept)
        self._kept = kept
        return back

    def taken_back(self, iterations: int) -> dict[str, Any] | None:  # noqa: ARG002 - `OnlinePromotion` is told by others
        """Nothing: results are judged here."""
        return None


class OnlinePromotion:
    """The same for the learner under `oa`: the supervisor judges, and executors put the best version on the shelf.

    Args:
        shelf: where it is kept.
        take: copies what lies there (P + `REMARKS`,); None where nothing does.
    """

    def __init__(self, shelf: Callable[[Array], Any], take: Callable[[], Array | None]) -> None:
        self._shelf, self._take = shelf, take

    @property
    def kept(self) -> Array | None:
        """What lies on the shelf (P + `REMARKS`,)."""
        return self._take()

    @property
    def best(self) -> Array | None:
        """Weights (P,) of the best version; None as long as there is no result."""
        kept = self._take()
        return None if kept is None else kept[:-REMARKS]

    def known(self, parameters: int) -> Array:
        """Return what lies there, (parameters + `REMARKS`,) also when nothing does: then all are 0."""
        kept = self._take()
        return np.zeros(parameters + REMARKS, np.float32) if kept is None else kept

    def go_on(self, kept: Array | None) -> None:
        """Take up what lay on the shelf of a former run; what executors have put there since is newer."""
        if kept is not None and self._take() is None:
            self._shelf(np.array(kept, np.float32))

    def judge(self, result: float, version: int, flat: Array) -> dict[str, Any] | None:  # noqa: ARG002 - as `Promotion`
        """Nothing: others judge."""
        return None

    def taken_back(self, iterations: int) -> dict[str, Any] | None:
        """What the learner goes back to: `best_version`, its `result` and the `iterations` since, as others count."""
        kept = self._take()
        if kept is None:
            return None
        return {"best_version": int(kept[_VERSION]), "result": float(kept[_RESULT]), "iterations": iterations}


def remarked(flat: Array, result: float, version: int) -> Array:
    """Weights (P,) of a version with its result, as they lie on the shelf (P + `REMARKS`,)."""
    return np.concatenate([flat, np.array([result, version, 0], np.float32)], dtype=np.float32)


class Score:
    """The score of the network that was promoted last, see `roles.best_score`; nothing is gone back to."""

    best: Array | None = None

    def __init__(self) -> None:
        self.highest = -math.inf

    @property
    def kept(self) -> Array | None:
        """A 1 and the score (2,); None before the first."""
        return None if self.highest == -math.inf else np.array([1.0, self.highest])

    def known(self, parameters: int) -> Array:  # noqa: ARG002 - the same verb as of `Promotion`
        """The same, zeros before the first."""
        return np.zeros(2) if self.kept is None else self.kept

    def go_on(self, kept: Array | None) -> None:
        """Take up what a predecessor kept; None: nothing."""
        self.highest = -math.inf if kept is None or not kept[0] else float(kept[1])

    def judge(self, result: float, version: int, flat: Array) -> None:
        """Nothing: weights are not gone back to."""

    def taken_back(self, iterations: int) -> None:
        """Nothing, as before."""
