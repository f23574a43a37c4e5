"""The evaluator as the supervisor asks it: versions come through shared memory, verdicts go back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from mlxe_async.errors import MlxeError
from mlxe_async.ipc.shared.weights import WeightsReader
from mlxe_async.ipc.shared.words import ProgressPage
from mlxe_async.roles.videos import Videos


class Examiner:
    """The evaluator's verb: take a version out of shared memory, go on with the tests, tell what is decided.

    Args:
        evaluator: does the testing.
        weights: where the supervisor leaves the versions to be tested.
        parameters: number of weights P.
        page: progress words.
        videos: films what is better than before; None: nothing is filmed.
    """

    def __init__(
        self, evaluator: Any, weights: WeightsReader, parameters: int, page: ProgressPage, videos: Videos | None = None
    ) -> None:
        self._videos = videos
        self._evaluator, self._weights, self._page = evaluator, weights, page
        self._parameters = parameters

    def evaluate(
        self,
        *,
        add: int | None = None,
        state: str | None = None,
        seconds: float | None = None,
        limit_s: float = 60.0,
    ) -> dict[str, Any]:
        """Advance all tests under way.

        Args:
            add: first begin to test the weights that lie ready, known as this version.
            state: what its wrappers know; None: what they knew when they were made.
            seconds: come back after about this time; None: when all is decided.
            limit_s: a stretch without progress that counts as hanging.

        Returns:
            `verdicts` as decided now, in the order the versions were added, `in_flight`, and `odd`: a sentence for each
            video that could not be made.
        """
        if add is not None:
            flat = np.empty(self._parameters, dtype=np.float32)
            if self._weights.read(flat) is None:
                raise MlxeError(f"evaluator: expected to read the weights of version {add} whole")
            self._evaluator.add(add, flat, state)

        def tick() -> None:
            self._page.leave()
            self._page.enter(limit_s, "evaluate")

        self._page.enter(limit_s, "evaluate")
        verdicts = self._evaluator.advance(seconds, tick)
        self._page.leave()
        odd: list[str] = []
        if self._videos is not None:
            odd, self._videos.told = self._videos.told, []
        decided = [asdict(verdict) for verdict in verdicts]
        return {"verdicts": decided, "in_flight": self._evaluator.in_flight, "odd": odd}

    def forget(self) -> dict[str, Any]:
        """Drop all tests under way."""
        self._evaluator.clear()
        return {}
