"""A learner that steps by what workers push: the parameter server of Gorila and A3C, Nair 2015 and Mnih 2016.

It does the update that a worker did, with what was pushed in the place of its own: so it clips, steps its own
optimisers, moves targets, counts moments and follows the clock as the algorithm's file says. Only these come from the
push, and the rows that go with it decide nothing. Several pushes at once are what their workers would exchange in one
update: their mean, weighted by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.interface import Clock
from mlxe_async.algorithms.state.backward import ExchangesGradients
from mlxe_async.errors import StepsDiffer
from mlxe_async.maths import together
from mlxe_async.maths.delay_compensation import DelayCompensation
from mlxe_async.maths.normaliser import Moments
from mlxe_async.roles.learner import Learner, Tally
from mlxe_async.rows import Array

MOMENTS = "moments."
"""Beginning of the names by which moments go with the rows of a push."""
HARMLESS = 200
"""Pushes without any compensation after which that is told."""
STEP = {"updates": 1}
"""The plan of a step: the rows that it needs lie with the pushes."""
Entries = Sequence[tuple[str, NDArray[Any]]]
"""The exchanges of an update, in their order, each of a kind of `maths.together.KINDS`."""


class PushesIn(Protocol):
    """The reading end of a worker's places, `ipc.shared.pushes.PushPlaces`."""

    def read(self, place: int, number: int) -> tuple[Entries, Mapping[str, NDArray[Any]]]:
        """A copy of the push of a number, its entries and rows.

        Raises:
            CorruptRecord: it does not lie there whole.
        """


class Given:
    """A group of workers that have given all that is asked for.

    Args:
        pushes: what each gave, in the order in which it is asked for.
    """

    def __init__(self, pushes: Sequence[Entries]) -> None:
        self.workers = len(pushes)
        self._pushes, self._used = pushes, 0

    def give(self, kind: str, numbers: NDArray[Any]) -> Callable[[], list[NDArray[Any]]]:
        """See `maths.together.Group.give`; all is there already.

        Raises:
            StepsDiffer: something else was given.
        """
        asked, found = f"{kind} of {numbers.nbytes:,} bytes", []
        for entries in self._pushes:
            given, array = entries[self._used] if self._used < len(entries) else ("nothing", numbers[:0])
            if kind == given == together.TABLE and len(array) < len(numbers):
                array = np.concatenate([array, np.zeros(len(numbers) - len(array))])
            if (given, array.nbytes) != (kind, numbers.nbytes):
                raise StepsDiffer(
                    f"exchange {self._used + 1} of an update: the learner asks for {asked}, the worker gave {given} "
                    f"of {array.nbytes:,} bytes; expected the same steps of all: their number must not depend on chance"
                )
            found.append(array)
        self._used += 1
        return lambda: found

    def expect_end(self) -> None:
        """Make sure that nothing is left.

        Raises:
            StepsDiffer: something is.
        """
        if left := max(map(len, self._pushes)) - self._used:
            raise StepsDiffer(f"an update: the worker made {left} exchanges more than the learner, expected the same")


class ParameterServer(Learner):
    """Steps by what workers push.

    Args:
        places: where the pushes of each worker are.
        compensation: moves gradients to where the weights are now; None: they are applied as they come.
        how: as for `Learner`; with `compensation` without twins, whose gradients have another order.
    """

    def __init__(
        self, places: Sequence[PushesIn], *, compensation: DelayCompensation | None = None, **how: Any
    ) -> None:
        super().__init__(**how)
        self._compensation, self._harmless = compensation, 0
        self._places, self._exchanges = places, ExchangesGradients()
        self._pushes: list[tuple[Mapping[str, Any], Entries]] = []
        self._rows: Mapping[str, Array] = {}

    def learn(self, plan: Mapping[str, Any], *, pushes: Sequence[Mapping[str, Any]] = (), **how: Any) -> dict[str, Any]:
        """Do one update by pushes, then publish; see `Learner.learn`.

        Args:
            plan: its `updates` alone are asked for.
            pushes: the `worker`, `number` and `place` of each, and what the worker answered.
            how: as for `Learner.learn`.

        Raises:
            CorruptRecord: a push does not lie whole in its place.
        """
        if not self.has_answered(how.get("call")):
            found = [self._places[push["worker"]].read(push["place"], push["number"]) for push in pushes]
            self._pushes = [(push, entries) for push, (entries, _) in zip(pushes, found, strict=True)]
            self._rows = found[-1][1] if found else {}
        return super().learn(plan, **how)

    @property
    def _whole_batch(self) -> Mapping[str, Array]:
        return {} if any(about["few"] for about, _ in self._pushes) else self._batch

    def _learned(self, plan: Mapping[str, Any], clock: Clock, *, usable: bool) -> dict[str, Any]:
        if not plan["updates"]:
            return super()._learned(plan, clock, usable=usable)
        told: dict[str, float] = {}
        every = [entries for _, entries in self._pushes]
        if self._compensation is not None:
            (about, entries), *_ = self._pushes
            moved, told = self._compensated(self._compensation, entries, about["version"], clock.version)
            every = [moved]
        if len(every) > 1 and not all(about["few"] for about, _ in self._pushes):
            raise StepsDiffer(
                f'schedule.combine: got "mean", expected "fifo": what an update of {type(self.algorithm).__name__} '
                "leads to depends on its rows by other ways than gradients and `maths.together`"
            )
        if self._updates.twin is None:
            self._exchanges.follow(self.algorithm)
        rows, moments = moments_from_columns(self._rows)
        if moments is not None:
            self.algorithm.set_moments(moments)
        try:
            given = Given(every)
            with together.learning_in(given):
                self._update(rows, clock, Tally())
            given.expect_end()
        except StepsDiffer as error:
            if len(every) == 1:
                raise
            raise StepsDiffer(
                f'schedule.combine: got "mean", expected "fifo" where the number of steps of an update follows from '
                f"its rows, as of minibatches: {error}"
            ) from error
        return put_together([about for about, _ in self._pushes], clock.version, told)

    def _compensated(
        self, how: DelayCompensation, entries: Entries, version: int, newest: int
    ) -> tuple[Entries, dict[str, float]]:
        """Entries with a gradient that is moved to the newest weights, and what is told of it."""
        self._exchanges.follow(self.algorithm)
        now = self._exchanges.weights()
        how.note(newest, now)
        pieces = [array for kind, array in entries if kind == together.GRADIENT]
        gradient = np.concatenate([piece[1:] for piece in pieces]) if pieces else np.zeros(0, np.float32)
        is_one = all(len(piece) - 1 == together.PIECE for piece in pieces[:-1])  # of several each has a short last one
        if gradient.shape != now.shape or not is_one:
            raise StepsDiffer(
                f'schedule.combine: got "delay_compensated", expected "fifo": an update of '
                f"{type(self.algorithm).__name__} pushes gradients of {gradient.size:,} numbers, learns {now.size:,}; "
                "what is compensated is one gradient of all weights"
            )
        found, missed = how.applied(gradient, now, version), not how.knows(version)
        moved = float(np.abs(found - gradient).mean())
        self._tell_if_harmless(moved)
        cut = iter(np.split(found, np.cumsum([len(piece) - 1 for piece in pieces])[:-1]))
        moved_entries = [
            (kind, np.concatenate([array[:1], next(cut)]) if kind == together.GRADIENT else array)
            for kind, array in entries
        ]
        return moved_entries, {"compensation": moved, "compensation_missed": float(missed)}

    def _tell_if_harmless(self, moved: float) -> None:
        """Say once that nothing was compensated for a long time: a setting without effect is to be seen."""
        self._harmless = self._harmless + 1 if not moved else -(10**9)
        if self._harmless == HARMLESS:
            sentence = (
                f"schedule.combine: the first {HARMLESS} pushes were compensated by nothing: none was older than the "
                'newest weights, or its weights were forgotten; "fifo" is the same'
            )
            self._notify({"kind": "remark", "detail": sentence})


def moments_to_columns(moments: Moments | None) -> dict[str, Array]:
    """Moments of observations as they go with a push."""
    return {} if moments is None else {f"{MOMENTS}{name}": np.array(value) for name, value in moments._asdict().items()}


def moments_from_columns(columns: Mapping[str, Array]) -> tuple[dict[str, Array], Moments | None]:
    """Rows, and the moments that went with them."""
    rows = {name: column for name, column in columns.items() if not name.startswith(MOMENTS)}
    if len(rows) == len(columns):
        return rows, None
    mean, variance, count = (columns[f"{MOMENTS}{name}"] for name in Moments._fields)
    return rows, Moments(mean, variance, float(count))


def put_together(pushes: Sequence[Mapping[str, Any]], version: int, also: Mapping[str, float]) -> dict[str, Any]:
    """Report one update by several pushes: means are over their rows.

    Args:
        pushes: their `version`, and `done` of `Learner.learn`.
        version: of the weights that they are applied to.
        also: further metrics.
    """
    done = [push["done"] for push in pushes]
    rows = [one["rows"] for one in done]
    later = [version - push["version"] for push in pushes]
    lags = [(one["lag_mean"] or 0.0) + more for one, more in zip(done, later, strict=True)]
    metrics: dict[str, float | None] = dict(also)
    for name in dict.fromkeys(name for one in done for name in one["metrics"]):
        known = [(one["metrics"][name], one["rows"]) for one in done if one["metrics"].get(name) is not None]
        whole = sum(share for _, share in known)
        metrics[name] = sum(value * share for value, share in known) / whole if whole else None
    summed = {name: sum(one[name] for one in done) for name in ("late_rows", "dropped_rollouts", "dropped_rows")}
    return {
        **done[0],
        **summed,
        "rows": sum(rows),
        "lag_min": min((one["lag_min"] or 0) + more for one, more in zip(done, later, strict=True)),
        "lag_mean": sum(lag * share for lag, share in zip(lags, rows, strict=True)) / max(1, sum(rows)),
        "lag_max": max((one["lag_max"] or 0) + more for one, more in zip(done, later, strict=True)),
        "finite": all(one["finite"] for one in done),
        "metrics": metrics,
    }
