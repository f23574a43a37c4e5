"""Whole networks by the best episode: what `schedule.combine = "best_score"` promotes, and who offers it.

A worker learns by itself from each episode that its executor has played, and the executor plays on by what it learned:
temporary weights. With them goes the episode's score, the sum of the rewards that are learned from. The learner
compares it with the best so far, which begins at minus infinity, and takes the network over if it is higher. Score and
weights change together: they are kept as one state before the weights are published, and only the learner compares. A
worker that begins an episode takes up what was promoted since it looked last; so losers receive the winner's weights.

That is how several workers share what they learn in the published study of an agent that asks web sites, which calls it
A3C. No gradients are shared, and a lucky episode is a high score: it suits tasks with little chance in them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mlxe_async.algorithms.interface import Clock
from mlxe_async.algorithms.state import drawing
from mlxe_async.roles.learner import Learner
from mlxe_async.roles.parameter_server import PushesIn, put_together
from mlxe_async.roles.promotion import Score
from mlxe_async.roles.pushing import Pusher, expect_known
from mlxe_async.rows import Array

WEIGHTS, SCORE = "weights", "score"
"""An offer has both."""


class BestScore(Learner):
    """Takes over whole networks, each if its score is the highest so far.

    Args:
        places: where the offers of each worker are.
        score: the best so far.
        how: as for `Learner`, with `keep_every` 1.
    """

    def __init__(self, places: Sequence[PushesIn], *, score: Score, **how: Any) -> None:
        self._places, self._score = places, score
        self._offered: tuple[Mapping[str, Any], Array, float] | None = None
        super().__init__(promotion=score, **how)

    def learn(self, plan: Mapping[str, Any], *, pushes: Sequence[Mapping[str, Any]] = (), **how: Any) -> dict[str, Any]:
        """Publish the network that is offered, if its score is higher than the best; see `Learner.learn`.

        Args:
            plan: its `updates` alone are asked for.
            pushes: one: its `worker`, `number` and `place`, and what the worker answered.
            how: as for `Learner.learn`.

        Returns:
            As `Learner.learn`; with `updates` 0 if it was not higher, or its weights were not finite.

        Raises:
            CorruptRecord: the offer does not lie whole in its place.
        """
        if self.has_answered(how.get("call")) or not plan["updates"]:
            return super().learn(plan, **how)
        (about,) = pushes
        start_ns = time.monotonic_ns()
        offered = dict(self._places[about["worker"]].read(about["place"], about["number"])[0])
        weights, score = offered[WEIGHTS], float(offered[SCORE][0])
        if score > self._score.highest and np.isfinite(weights).all():
            self._offered = about, weights, score
            return super().learn(plan, **how)
        done = self._report(about, score) | {"updates": 0, "rolled_back": False, "set_back": None}
        done.pop("finite")
        seconds = (time.monotonic_ns() - start_ns) / 1e9
        told = {"version": self._weights.version, "norm": self._norm, "start_ns": start_ns, "publish_seconds": 0.0}
        return self._answered(how.get("call") or 0, {**done, **told, "seconds": seconds})

    @property
    def _whole_batch(self) -> Mapping[str, Array]:
        return {}

    def _learned(self, plan: Mapping[str, Any], clock: Clock, *, usable: bool) -> dict[str, Any]:
        if self._offered is None:
            return super()._learned(plan, clock, usable=usable)
        (about, weights, score), self._offered = self._offered, None
        self.algorithm.set_weights(weights)
        self._score.highest = score
        return self._report(about, score)

    def _report(self, about: Mapping[str, Any], score: float) -> dict[str, Any]:
        return put_together([about], self._weights.version, {"score": score})


class Contender(Pusher):
    """Learns by itself from what its executor played, and offers the network with the episode's return.

    Args:
        adopt: has the executor act by weights (P,) from its next episode on, until others are published.
        how: as for `Pusher`.
    """

    def __init__(self, *args: Any, adopt: Callable[[Array], None], **how: Any) -> None:
        super().__init__(*args, **how)
        self._adopt, self._base = adopt, -1

    def _differentiate(
        self, plan: Mapping[str, Any], number: int, place: int, counts: Mapping[str, int]
    ) -> dict[str, Any]:
        assert self._acted is not None  # noqa: S101 - it learns from rollouts
        version, flat = self._acted()
        expect_known(self.algorithm)
        if version != self._base:  # a network was promoted since, and pulled by the executor
            self.algorithm.set_weights(flat)
        self._base = -1  # an update that raises leaves weights that the executor does not act by
        drawing.reseed(self.algorithm, self._pushing.seed_of(number, counts["updates"]))
        done = self._learned(plan, Clock(**counts, version=version), usable=version > 0)
        weights, score, nbytes = self.algorithm.weights(), math.nan, 0
        if done["updates"] and np.isfinite(weights).all():
            score = float(np.asarray(self._batch["reward"], np.float64)[self._batch["valid"].astype(bool)].sum())
            self._adopt(weights)
            self._base = version
            offer = [(WEIGHTS, weights), (SCORE, np.array([score]))]
            nbytes = self._places.write(place, number, (offer, {}))
        else:
            done["finite"] = False
        return {"version": version, "state": version, "nbytes": nbytes, "few": True, "done": done}
