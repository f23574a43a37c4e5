"""Workers that make gradients by themselves and push them: the executors of A3C and its like, Mnih et al. 2016.

A worker does what the algorithm's file says on the rollout that its executor has just played, by the very weights that
it acted by; or, where rows are replayed, on a minibatch of all there are, by the newest weights. All that workers of
one update would exchange (see `maths.together`), gradients and statistics in their order, is recorded and pushed. What
the update makes of the worker's own copy is thrown away. `roles.parameter_server` says what becomes of a push.

Rows go with a push, because an update needs some: where it has been seen that they decide nothing beside what was
exchanged, a few of them, else all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async import turns
from mlxe_async.algorithms.interface import Algorithm, Clock
from mlxe_async.algorithms.state import drawing
from mlxe_async.algorithms.state.backward import ExchangesGradients
from mlxe_async.errors import MlxeError, StepsDiffer
from mlxe_async.maths import together
from mlxe_async.maths.normaliser import Moments
from mlxe_async.roles.keeping import Found
from mlxe_async.roles.learner import Tally
from mlxe_async.roles.parameter_server import Given, moments_to_columns
from mlxe_async.roles.states import PREFIX, take_up
from mlxe_async.roles.worker import NOTHING, Worker
from mlxe_async.rows import Array
from mlxe_async.seeds import derive_seed

FEW = 4
"""Samples of a minibatch that stand for all."""
TRIES = 16
"""Looks at what the learner writes now and then, before it is given up."""


class PushesOut(Protocol):
    """The writing end of a worker's places, `ipc.shared.pushes.PushPlaces`."""

    def write(self, place: int, number: int, push: Any) -> int:
        """Put the push of a number, its entries and rows, into a place; returns its bytes."""


class Recorder:
    """A group of one, which remembers what it was given."""

    workers = 1

    def __init__(self) -> None:
        self.entries: list[tuple[str, NDArray[Any]]] = []

    def give(self, kind: str, numbers: NDArray[Any]) -> Callable[[], list[NDArray[Any]]]:
        """See `maths.together.Group.give`."""
        self.entries.append((kind, numbers.copy()))
        return lambda: [numbers]


class Pushing:
    """A worker's place in an update that it makes alone.

    Args:
        lane: the number of its executor, whose rollouts it learns from.
        seed: of the run.
        replays: it learns from minibatches of the rows of all.
    """

    def __init__(self, lane: int, seed: int, *, replays: bool = False) -> None:
        self.lane, self.part = lane, (0 if replays else lane, 1)
        self.seed, self._exchanges = seed, ExchangesGradients()

    def seed_of(self, number: int, updates: int) -> int:
        """The seed of a push: its number counts from 1 in each sitting, the run's updates go on."""
        return derive_seed(self.seed, "worker", self.lane, number, updates)

    @contextlib.contextmanager
    def recording(self, algorithm: Any, number: int, *, twin: bool, updates: int) -> Iterator[Recorder]:
        """Record inside; random numbers follow from the seed, the worker, the push's number and the run's updates.

        Raises:
            MlxeError: the algorithm is not derived from `Algorithm`, whose leaves and generators are known.
        """
        expect_known(algorithm)
        drawing.reseed(algorithm, self.seed_of(number, updates))
        if not twin:
            self._exchanges.follow(algorithm)
        recorder = Recorder()
        with together.learning_in(recorder):
            yield recorder


def expect_known(algorithm: Any) -> None:
    """Make sure that an algorithm's leaves and generators are known.

    Raises:
        MlxeError: it is not derived from `Algorithm`.
    """
    if not isinstance(algorithm, Algorithm):
        raise MlxeError(
            f"algorithm.name: {type(algorithm).__name__} is not derived from Algorithm, expected so with "
            'schedule.gradients = "executors"'
        )


class Pusher(Worker):
    """Differentiates what its executor played.

    Args:
        acted: version and weights (P,) that the executor acted by; None: it learns by the newest that are published.
        places: where its pushes go.
        how: as for `Worker`, with a `team` of `Pushing`.
    """

    def __init__(
        self, *args: Any, acted: Callable[[], tuple[int, Array]] | None, places: PushesOut, **how: Any
    ) -> None:
        super().__init__(*args, **how)
        self._pushing: Pushing = how["team"]
        self._acted, self._places = acted, places
        self._few: bool | None = None
        "A few rows stand for all; None: it is not known yet."

    def differentiate(
        self, plan: Mapping[str, Any], *, number: int, place: int, env_steps: int, episodes: int, updates: int
    ) -> dict[str, Any]:
        """Make the gradients of a plan, by the weights that its rows were played by, and push them.

        Args:
            plan: from `Memorizer.memorize`, a rollout of this worker's executor or one minibatch.
            number: of the push.
            place: where it goes.
            env_steps: environment steps of the run so far.
            episodes: finished episodes of the run so far.
            updates: updates of the run so far.

        Returns:
            `version` of the weights, `state` (the version to which the learner's state belonged), `nbytes` that were
            pushed, `few` (whether a few rows stand for all), and `done`, as of `Learner.learn`. Rollouts of other
            weights are dropped, and nothing is pushed where no rows are left.

        Raises:
            MlxeError: the learner's state cannot be had.
            StepsDiffer: the update made no gradient.
            UpdateFailed: the update raised.
        """
        counts = {"env_steps": env_steps, "episodes": episodes, "updates": updates}
        with turns.torchs_generator():
            return self._differentiate(plan, number, place, counts)

    def _differentiate(
        self, plan: Mapping[str, Any], number: int, place: int, counts: Mapping[str, int]
    ) -> dict[str, Any]:
        version, flat = self._newest() if self._acted is None else self._acted()
        state = self._go_on_from(version, flat)
        before = self._state() if self._few is None else {}
        clock = Clock(**counts, version=version)
        twin = self._updates.twin is not None
        with self._pushing.recording(self.algorithm, number, twin=twin, updates=counts["updates"]) as recorder:
            done = self._learned(plan, clock, usable=version > 0)  # a new life has not acted yet
        nbytes = 0
        if done["updates"]:
            entries = recorder.entries
            gradients = sum(kind == together.GRADIENT for kind, _ in entries)
            if not gradients:
                raise StepsDiffer(
                    f"{type(self.algorithm).__name__} has learned without a gradient of `backward`, expected one to "
                    'push: try schedule.gradients = "learner"'
                )
            batch, moments = self._batch, self._moments(plan)
            few = self._fewest(batch, gradients)
            if self._few is None:
                self._few = self._is_enough(few, entries, clock, before, moments)
            rows = {**(few if self._few else batch), **moments_to_columns(moments)}
            nbytes = self._places.write(place, number, (entries, rows))
        return {"version": version, "state": state, "nbytes": nbytes, "few": bool(self._few), "done": done}

    def _is_enough(
        self,
        few: dict[str, Array],
        entries: Sequence[Any],
        clock: Clock,
        before: Mapping[str, Array],
        moments: Moments | None,
    ) -> bool:
        """Return True if the exchanges and a few rows lead to the state that this worker came to by all rows."""
        came_to, batch, is_enough = self._state(), self._batch, False
        take_up(self.algorithm, before)
        if moments is not None:
            self.algorithm.set_moments(moments)
        with contextlib.suppress(Exception):  # then the learner gets all rows, and says what is wrong with them
            given = Given([entries])
            with together.learning_in(given):
                self._update(few, clock, Tally())
            given.expect_end()
            is_enough = _same(came_to, self._state())
        self._batch = batch
        return is_enough

    def _moments(self, plan: Mapping[str, Any]) -> Moments | None:
        """Those of all replayed observations, where the algorithm learns by them."""
        wanted = self.memory.kind == "replay" and getattr(self.algorithm, "moment_entries", 0)
        return Moments(*self.memory.moments(plan)) if wanted else None

    def _fewest(self, batch: Mapping[str, Array], gradients: int) -> dict[str, Array]:
        if self.memory.kind == "replay":
            return fewest_samples(batch, self.algorithm.window)
        return fewest(batch, gradients, {column.name for column in self.memory.shape.first_layout.columns})

    def _newest(self) -> tuple[int, Array]:
        for _ in range(TRIES):
            version = self._published.read(self._flat)
            if version is not None:
                return version, self._flat
        raise MlxeError(f"worker {self._pushing.lane}: expected to read the published weights whole")

    def _go_on_from(self, version: int, flat: Array) -> int:
        """Take up weights, and the learner's newest state; returns the version to which that belongs.

        The learner keeps its state a moment before it publishes. What is not published yet is not taken up: the
        executor's next rollout might be played by older weights than that, an order that no replay could repeat.
        """
        found = self._published_state()
        if found is None or not self._keeper.take_up(found, version, flat):
            raise MlxeError(f"worker {self._pushing.lane}: expected the learner's kept state, found none")
        self._followed.version = NOTHING
        self._has_learned = True
        return found.version

    def _published_state(self) -> Found | None:
        for _ in range(TRIES):  # the learner may publish and keep twice between the two looks
            found = self._keeper.find(self._published.latest())
            if found is not None:
                return found
        return None

    def _state(self) -> dict[str, Array]:
        return {PREFIX + name: np.array(array) for name, array in self.algorithm.state().items()}


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Return whether two states are alike but for those of generators, which are whole numbers."""
    return one.keys() == other.keys() and all(
        array.dtype.kind != "f" or np.array_equal(array, other[name], equal_nan=True) for name, array in one.items()
    )


def fewest_samples(batch: Mapping[str, Array], window: int) -> dict[str, Array]:
    """The first `FEW` samples of a minibatch, (M, ...) or windows (window, M, ...)."""
    return {
        name: column[:, :FEW] if window > 1 and name != "weight" else column[:FEW] for name, column in batch.items()
    }


def fewest(batch: Mapping[str, Array], gradients: int, per_rollout: set[str]) -> dict[str, Array]:
    """The first rows of rollouts (T, B, ...), at least as many as there are gradients: a minibatch needs one.

    Args:
        batch: rollouts.
        gradients: of the update.
        per_rollout: columns that are (B, ...).
    """
    length, envs = batch["valid"].shape
    steps = min(length, max(1, -(-gradients // envs)))
    few = {name: column if name in per_rollout else column[:steps] for name, column in batch.items()}
    if steps < length and "cut" in few:
        few["cut"] = few["cut"].copy()
        few["cut"][-1] = ~(few["terminated"][-1].astype(bool) | few["truncated"][-1].astype(bool))
    return few
