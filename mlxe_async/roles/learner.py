"""The learner: gathers what the memorizer drew but rows that are too old, updates the weights, publishes them."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mlxe_async import denormals
from mlxe_async.algorithms.interface import Clock
from mlxe_async.errors import (
    AttemptBroken,
    AuditFailed,
    NonFiniteWeights,
    NumericError,
    StepsDiffer,
    UpdateFailed,
    raised_at,
)
from mlxe_async.fast import Updates, updates, watch_of
from mlxe_async.fast.audit import Audit
from mlxe_async.fast.target_values import Drawn
from mlxe_async.maths import together
from mlxe_async.maths.normaliser import Moments
from mlxe_async.roles.keeping import StateKeeper, Store
from mlxe_async.roles.likeness import Likeness
from mlxe_async.roles.promotion import OnlinePromotion, Promotion, Score
from mlxe_async.roles.quantiles import Quantiles
from mlxe_async.roles.states import expect_counts, expect_numbers, take_up
from mlxe_async.roles.team import Team
from mlxe_async.rows import Array
from mlxe_async.tasks.hostile import words_of
from mlxe_async.waits import Waits

if TYPE_CHECKING:
    from mlxe_async.fast.products import Library

ROLL_BACKS_FORGIVEN = 3
NORM_AT_ONCE = 1 << 16


class WeightsOut(Protocol):
    """The writing end of the published weights, `ipc.shared.weights.WeightsWriter`."""

    @property
    def version(self) -> int:
        """Newest version, 0 before the first."""

    def publish(self, vector: Array) -> int:
        """Make `vector` (P,) the newest version.

        Raises:
            NonFiniteWeights: it holds a NaN or an infinity; the old version stays.
        """


class Page(Protocol):
    """Progress words, `ipc.shared.words.ProgressPage`."""

    def enter(self, limit_s: float, call: str) -> None:
        """A call that may hang begins."""

    def spending(self, mode: str) -> contextlib.AbstractContextManager[None]:
        """Its time is spent on this inside."""

    def leave(self) -> None:
        """It returned."""


class Learner:
    """Learns from one memory and publishes the weights.

    Args:
        algorithm: made with `learns=True`.
        memory: the same memory the memorizer keeps.
        weights: where versions are published.
        page: progress words.
        update_timeout_s: limit of one update, in seconds.
        max_policy_lag: nothing generated more than this many versions ago is learned from; None: no bound.
        last_good: weights (P,) of the newest version, to go on from after a restart; None when nothing is published.
        store: where all other state is kept, and where a predecessor's may lie; None: nowhere.
        keep_every: publications between two writes of it; see `keeping.StateKeeper`.
        promotion: says when to go back to the best version so far; None: never.
        fast: whether a built-in algorithm's fast twin may do its updates.
        audit_every: updates from one to the next that is compared with the algorithm's own file; 0: never.
        products: the library that multiplies the matrices of dense twins.
        notify: sends a notice up: what came of that.
        remarks: what else is to be told since it was last asked, asked with each publication.
        keep_batch: writes the batch that made the weights non-finite once too often somewhere, and says where.
        make: makes an object as executors do, to see that it acts as the learner's would; None: it is not checked.
        team: those that it learns together with; None: it learns alone.
        quantiles_every: updates from one account of quantiles to the next; 0: there is none.
        gauge: what a GPU is used for, asked with each publication; None: there is nothing to tell.
        temperatures: see `fast.audit.Audit`.
    """

    def __init__(
        self,
        *,
        algorithm: Any,
        memory: Any,
        weights: WeightsOut,
        page: Page,
        update_timeout_s: float,
        max_policy_lag: int | None = None,
        last_good: Array | None = None,
        store: Store | None = None,
        keep_every: int = 1,
        promotion: Promotion | OnlinePromotion | Score | None = None,
        fast: bool = True,
        audit_every: int = 0,
        products: Library = "auto",
        notify: Callable[[dict[str, Any]], None] = lambda _notice: None,
        remarks: Callable[[], list[str]] = list,
        keep_batch: Callable[[Mapping[str, Array]], str | None] = lambda _batch: None,
        make: Callable[[], Any] | None = None,
        team: Team | None = None,
        quantiles_every: int = 0,
        gauge: Callable[[], dict[str, Any] | None] = lambda: None,
        temperatures: Sequence[float] = (1.0,),
    ) -> None:
        self._team, self._temperatures = team, temperatures
        if team is not None:
            memory.share(*team.part)
        self.algorithm = algorithm
        self.memory = memory
        self._weights, self._page = weights, page
        self._update_timeout_s = update_timeout_s
        self._max_policy_lag = max_policy_lag
        self._last_good = last_good
        self._promotion = promotion
        self._roll_backs = 0
        self._odd: tuple[str, ...] = ()
        self._norm: float | None = None
        self._batch: Mapping[str, Array] = {}
        self._keep_batch = keep_batch
        self._notify, self._remarks = notify, remarks
        self._keeper = StateKeeper(store, algorithm, keep_every)
        self._call, self._answer = 0, dict[str, Any]()
        self.behind: int | None = None
        "Publications by which the state that was taken up is older than the weights; None: there was none."
        if last_good is not None:
            self._norm = _norm(last_good)
            self._take_up(last_good)
        self._watch = watch_of(type(algorithm)) if fast else None
        self._fast, self._audit_every, self._products = fast, audit_every, products
        self._told: dict[str, Any] | None = None
        self._is_begun = False
        self._likeness = Likeness(
            algorithm, make, lambda sentence: self._notify({"kind": "remark", "detail": sentence})
        )
        self._has_learned = last_good is not None
        self._gauge = gauge
        self._quantiles = Quantiles(algorithm, quantiles_every, notify) if quantiles_every else None

    @functools.cached_property
    def _updates(self) -> Updates:
        return updates(self.algorithm, fast=self._fast, watch=self._watch, products=self._products)

    @functools.cached_property
    def _audit(self) -> Audit:
        beat = functools.partial(self._page.enter, self._update_timeout_s, "update")
        return Audit(self._updates, self._audit_every, beat, self._temperatures)

    @functools.cached_property
    def _waits(self) -> Waits | None:
        return Waits.here()

    def _take_up(self, flat: Array) -> None:
        """Go on from what a predecessor published and kept."""
        version = self._weights.version
        found = self._keeper.find(version)
        if found is None or not self._keeper.take_up(found, version, flat):
            self.algorithm.set_weights(flat)
        else:
            self.behind = version - found.version
        if found is not None and found.version == version:
            self._roll_backs = found.roll_backs
            self._call, self._answer = found.call
            if self._promotion is not None:
                self._promotion.go_on(found.promotion)

    def publish(self, *, call: int | None = None) -> dict[str, Any]:
        """Publish the present weights.

        Args:
            call: number of this call; asked again with the number of the call before, it answers the same.

        Returns:
            `version`, `norm`, `start_ns`, `seconds`.
        """
        if self.has_answered(call):
            return self._answer
        start_ns = time.monotonic_ns()
        said = self._publish(call or 0, lambda: {"start_ns": start_ns, "seconds": _seconds_since(start_ns)})
        if self._watch is not None:
            self._watch.begin()  # executors act meanwhile
        return said

    def _publish(self, call: int, answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Keep all state, then publish the weights; returns the answer to the call that led here."""
        vector, version = self.algorithm.weights(), self._weights.version + 1
        told = {"version": version, "norm": _norm(vector)}
        if math.isfinite(told["norm"]):
            self._likeness.see(vector)
        if math.isfinite(told["norm"]) and self._keeper.is_due(version):
            self._keep(version, call, answer() | told, len(vector))
        with self._page.spending("publishing"):
            self._weights.publish(vector)
        if self._quantiles is not None:
            with self._page.spending("working"):
                self._quantiles.published(vector, version)
        self._last_good, self._norm, self._roll_backs = vector, told["norm"], 0
        if (used := self._gauge()) is not None:
            self._notify({"kind": "gpu", **used})
        if not self._is_begun:
            self._is_begun = True
            self._likeness.tell()
        if self._has_learned:
            self._tell_updates()
        for sentence in self._remarks():
            self._notify({"kind": "remark", "detail": f"learner.device: {sentence}"})
        return self._answered(call, answer() | told)

    def _tell_updates(self) -> None:
        """Say how updates are done, after the first one and when that has changed."""
        now = self._updates
        how = {"fast": now.is_fast, "detail": now.reason, "products": now.products}
        if self._told != how:
            self._told = how
            self._notify({"kind": "updates", **how})

    def _keep(self, version: int, call: int, answer: dict[str, Any], parameters: int, roll_backs: int = 0) -> None:
        promotion = None if self._promotion is None else self._promotion.known(parameters)
        how: Any = {"roll_backs": roll_backs, "call": call, "answer": answer, "promotion": promotion}
        with self._page.spending("keeping"):
            self._keeper.keep(version, self._weights.version, **how)

    def _keep_again(self, call: int, answer: dict[str, Any]) -> None:
        """The state changed without a publication: keep it under the version that stays."""
        if self._last_good is not None:
            self._keep(self._weights.version, call, answer, len(self._last_good), self._roll_backs)

    def _answered(self, call: int, answer: dict[str, Any]) -> dict[str, Any]:
        self._call, self._answer = call, answer
        return answer

    def has_answered(self, call: int | None) -> bool:
        """Return whether this is the call before, whose answer may have been lost."""
        return call is not None and call == self._call

    def state(self) -> dict[str, Array]:
        """All that the next update depends on, by name; the algorithm's part begins with `algorithm.`."""
        self._updates.expect_unchanged()
        known: dict[str, Array] = {"roll_backs": np.array(self._roll_backs)}
        if callable(getattr(self.algorithm, "state", None)):
            known |= {f"algorithm.{name}": array for name, array in self.algorithm.state().items()}
        if self._promotion is not None and self._promotion.kept is not None:
            known["promotion"] = self._promotion.kept
        return known

    def restore(self, state: Mapping[str, Array]) -> dict[str, Any]:
        """Go on from there, with the published weights as they are.

        Returns:
            `exact`: whether the algorithm could take up its state; without, its optimiser starts fresh.
        """
        expect_counts("learner", state, ["roll_backs"])
        expect_numbers("learner", state)
        self._roll_backs = int(state["roll_backs"])
        if self._promotion is not None and "promotion" in state:
            known = state["promotion"]  # of another shape it is of other settings, by which the run began
            if known.shape == self._promotion.known(len(self.algorithm.weights())).shape:
                self._promotion.go_on(known)
        exact, self._has_learned = take_up(self.algorithm, state), True
        self._keep_again(0, {})
        return {"exact": exact}

    def learn(
        self,
        plan: Mapping[str, Any],
        *,
        env_steps: int,
        episodes: int,
        updates: int,
        progress: float | None = None,
        call: int | None = None,
        iterations: int | None = None,
        attempt: int = 1,
    ) -> dict[str, Any]:
        """Do the updates of a plan, then publish once.

        When it is time to go back to the best version so far, that comes first: the updates begin there. Rollouts,
        which only the policy that made them may learn from, are dropped then, and the best version is published again.

        Args:
            plan: from `Memorizer.memorize`.
            env_steps: environment steps of the run so far.
            episodes: finished episodes of the run so far.
            updates: updates of the run so far.
            progress: training result of the newest version, if there is one.
            call: number of this call; asked again with the number of the call before, it learns nothing and answers
                the same.
            iterations: since the best version, where others have judged that it is time to go back to it.
            attempt: number of this attempt, among those that learn together.

        Returns:
            `version`, `norm`, `updates`, `rows`, `lag_min`, `lag_mean`, `lag_max`, `late_rows` (overwritten before they
            were gathered), `dropped_rollouts` and `dropped_rows` (older than the bound), `metrics` (means over the
            updates), `rolled_back`, `set_back` (None, or `best_version`, its `result` and the `iterations` since),
            `start_ns`, `seconds`, `publish_seconds`.

        Raises:
            NumericError: losses or weights became non-finite again and again.
            AttemptBroken: another worker of the team is no more.
            StepsDiffer: the workers of the team did not take the same steps.
        """
        if self.has_answered(call):
            return self._answer
        start_ns = time.monotonic_ns()
        clock = Clock(env_steps=env_steps, episodes=episodes, updates=updates, version=self._weights.version)
        set_back = self._perhaps_go_back(progress, iterations)
        if self._team is None:
            done = self._learned(plan, clock, usable=set_back is None)
        else:
            try:
                with self._team.learning(self.algorithm, clock, attempt, twin=self._updates.twin is not None):
                    done = self._team.agreed(self.algorithm, self._learned(plan, clock, usable=set_back is None))
            except AttemptBroken:  # the whole update is made again, from where it began
                assert self._last_good is not None  # noqa: S101 - the schedule begins with a publication
                self._take_up(self._last_good)
                raise
        if self._quantiles is not None and done["updates"]:
            with self._page.spending("working"):
                self._quantiles.learned(self._whole_batch, clock, done["updates"])
        learned_ns = time.monotonic_ns()
        changed, is_good = done["updates"] > 0 or set_back is not None, done.pop("finite")

        def answer() -> dict[str, Any]:
            now = time.monotonic_ns()  # once: a part is never longer than the whole
            seconds = {"seconds": (now - start_ns) / 1e9, "publish_seconds": (now - learned_ns) / 1e9}
            return {"rolled_back": False, **done, "set_back": set_back, "start_ns": start_ns, **seconds}

        cause = None
        if changed and is_good:
            self._has_learned = True
            try:
                return self._publish(call or 0, answer)
            except NonFiniteWeights as error:
                cause = error
        told: dict[str, Any] = {"version": self._weights.version, "norm": self._norm}
        if changed:
            self._roll_back(cause)
            told["rolled_back"] = True
        said = self._answered(call or 0, answer() | told)
        if changed or self._promotion is not None:
            self._keep_again(call or 0, said)
        return said

    @property
    def _whole_batch(self) -> Mapping[str, Array]:
        """All rows of the last update; none where they are elsewhere."""
        return self._batch

    def _learned(self, plan: Mapping[str, Any], clock: Clock, *, usable: bool) -> dict[str, Any]:
        if self.memory.kind == "replay":
            return self._learn_batches(plan, clock)
        return self._learn_rollouts(plan, clock, usable=usable)

    def _perhaps_go_back(self, progress: float | None, iterations: int | None) -> dict[str, Any] | None:
        if self._promotion is None or self._last_good is None:
            return None
        if iterations is not None:
            set_back = self._promotion.taken_back(iterations)
        elif progress is not None:
            set_back = self._promotion.judge(progress, self._weights.version, self._last_good)
        else:
            return None
        if set_back is not None:
            self.algorithm.set_weights(self._promotion.best)
        return set_back

    def _learn_batches(self, plan: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
        tally = Tally()
        if plan["updates"] and getattr(self.algorithm, "moment_entries", 0):
            self.algorithm.set_moments(Moments(*self.memory.moments(plan)))
        values = self._updates.target_values if plan["updates"] else None
        if values is not None:
            index, stamp = self.memory.drawn(plan)
            values.expect(Drawn(index, stamp, self.memory.shape.capacity, self.memory.rows_at))
        for k in range(plan["updates"]):
            batch, positions = self.memory.gather(plan, k, self.algorithm.window, reuse=True)
            tally.late_rows += self.memory.rows_of(plan) - len(positions)
            if not len(positions):
                continue
            batch, positions = self._young_enough(batch, positions, clock, tally)
            if not len(positions):
                continue
            if values is not None:
                values.begin_update(k, positions)
            priorities = self._update(batch, replace(clock, updates=clock.updates + tally.updates), tally)
            if not tally.finite and self._team is None:  # a team takes the same steps, and ends together
                break
            if priorities is not None:
                self.memory.note_priorities(plan, k, positions, priorities)
        return tally.report()

    def _young_enough(
        self, batch: dict[str, Array], positions: Array, clock: Clock, tally: Tally
    ) -> tuple[dict[str, Array], Array]:
        """Measure the lag of a minibatch, and leave out what is older than the bound, if there is one."""
        windowed = self.algorithm.window > 1
        lags = clock.version - (batch["version"][0] if windowed else batch["version"])
        if self._max_policy_lag is not None and len(lags) and lags.max() > self._max_policy_lag:
            young = np.flatnonzero(lags <= self._max_policy_lag)
            tally.dropped_rows += len(lags) - len(young)
            batch = {
                name: column[:, young] if windowed and name != "weight" else column[young]
                for name, column in batch.items()
            }
            positions, lags = positions[young], lags[young]
        if len(lags):
            tally.lag(lags)
        return batch, positions

    def _learn_rollouts(self, plan: Mapping[str, Any], clock: Clock, *, usable: bool) -> dict[str, Any]:
        tally = Tally()
        if plan["updates"]:
            bound = None if self._max_policy_lag is None else clock.version - self._max_policy_lag
            if not usable:
                bound = np.iinfo(np.int64).max  # older than which everything is
            batch, tally.dropped_rollouts = self.memory.gather(plan, bound)
            if batch:
                tally.lag(clock.version - batch["version"][batch["valid"]])
                self._update(batch, clock, tally)
            tally.dropped_rows = self.memory.rows_of(plan) - tally.rows
        return tally.report()

    def _update(self, batch: dict[str, Array], clock: Clock, tally: Tally) -> Array | None:
        self._batch = batch
        published = None if self._last_good is None else (self._weights.version, self._last_good)
        if self._team is not None:
            together.learn_from(_rows_of(batch))
        self._page.enter(self._update_timeout_s, "update")
        try:
            with denormals.flushed():
                metrics, priorities = self._audit.update(batch, clock, published, may_fall_back=not self._has_learned)
            tally.add(metrics)
            self._odd = tally.odd
            self._likeness.learned(batch, clock)
            if self._waits is not None:
                self._waits.look()
        except (AuditFailed, AttemptBroken, StepsDiffer):
            raise
        except Exception as error:
            raise UpdateFailed(f"{raised_at(error, anywhere=True)}: {words_of(error)}") from error
        finally:
            self._page.leave()
        return None if priorities is None else np.asarray(priorities)

    def _roll_back(self, cause: Exception | None) -> None:
        """A loss or a weight is not finite: back to the last good version, or give up.

        The first time in a row with all state of that version. Then the state itself may be at fault, such as a moment
        that is infinite, and only the weights are gone on from.
        """
        self._roll_backs += 1
        if self._roll_backs > ROLL_BACKS_FORGIVEN or self._last_good is None:
            kept = self._keep_batch(self._batch) if self._batch else None
            where = f"; the last batch is in {kept}" if kept else ""
            what = f" ({', '.join(self._odd)})" if self._odd else ""
            tries = "a smaller learning rate, and in a loss of your own no logarithm, root or quotient that may be none"
            raise NumericError(
                f"learner: expected finite losses and weights, got NaN or infinity {self._roll_backs} times in a row "
                f"after version {self._weights.version}{what}; try {tries}{where}"
            ) from cause
        version = self._weights.version
        found = self._keeper.find(version) if self._roll_backs == 1 else None
        if found is None or not found.is_finite or not self._keeper.take_up(found, version, self._last_good):
            self.algorithm.set_weights(self._last_good)


def _rows_of(batch: Mapping[str, Array]) -> int:
    """Rows that a batch holds: valid ones of rollouts, samples of a replay memory."""
    return len(batch["weight"]) if "weight" in batch else int(batch["valid"].sum())


def way_of(algorithm: Any, *, fast: bool, products: Library) -> Updates:
    """The way in which a learner does an algorithm's updates; `fast`: a twin may do them."""
    return updates(algorithm, fast=fast, products=products)


def _seconds_since(start_ns: int) -> float:
    return (time.monotonic_ns() - start_ns) / 1e9


def _norm(vector: Array) -> float:
    """In double precision: the squares of finite weights may overflow in single. A piece at a time, for the caches."""
    pieces = (vector[start : start + NORM_AT_ONCE] for start in range(0, len(vector), NORM_AT_ONCE))
    return math.sqrt(sum(float(np.dot(wide := piece.astype(np.float64), wide)) for piece in pieces))


class Tally:
    """What the updates of one plan add up to."""

    def __init__(self) -> None:
        self.updates = self.late_rows = self.dropped_rollouts = self.dropped_rows = self.rows = 0
        self._sums: dict[str, float] = defaultdict(float)
        self._lag_min: int | None = None
        self._lag_max: int | None = None
        self._lag_sum = 0
        self.odd: tuple[str, ...] = ()  # losses that are not finite

    def lag(self, lags: Array) -> None:
        """Count rows by their lags (N,)."""
        low, high = int(lags.min()), int(lags.max())
        self._lag_min = low if self._lag_min is None else min(low, self._lag_min)
        self._lag_max = high if self._lag_max is None else max(high, self._lag_max)
        self._lag_sum += int(lags.sum())
        self.rows += lags.size

    def add(self, metrics: Mapping[str, float]) -> None:
        """Count an update, and what it measured."""
        self.updates += 1
        for name, value in metrics.items():
            self._sums[name] += float(value)
        losses = [name for name in metrics if name.endswith("loss")]
        self.odd = tuple(name for name in losses if not math.isfinite(self._sums[name]))

    @property
    def finite(self) -> bool:
        """True if all losses are."""
        return not self.odd

    def report(self) -> dict[str, Any]:
        """All of it, as `Learner.learn` tells it."""
        return {
            "updates": self.updates,
            "rows": self.rows,
            "lag_min": self._lag_min,
            "lag_mean": self._lag_sum / self.rows if self.rows else None,
            "lag_max": self._lag_max,
            "late_rows": self.late_rows,
            "dropped_rollouts": self.dropped_rollouts,
            "dropped_rows": self.dropped_rows,
            "finite": self.finite,
            "metrics": {name: self._mean(total) for name, total in self._sums.items()},
        }

    def _mean(self, total: float) -> float | None:
        # What is not finite cannot be sent; that the weights are finite is checked apart.
        return total / self.updates if math.isfinite(total) else None
