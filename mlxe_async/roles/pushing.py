"""Workers that make gradients by themselves and push them: the executors of A3C and its like, Mnih et al. 2016.

A worker does what the algorithm's file says on the rollout that its executor has just played, by the very weights that
it acted by. All that workers of one update would exchange (see `maths.together`), gradients and statistics in their
order, is recorded and pushed. What the update makes of the worker's own copy is thrown away.

The learner does the same update with what was pushed in the place of its own: so it clips, steps its own optimisers,
moves targets, counts moments and follows the clock as the file says. Only these come from the push, and the learner's
own rows decide nothing; where that has been seen to hold, a few of them do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.interface import Algorithm, Clock
from mlxe_async.algorithms.state import drawing
from mlxe_async.algorithms.state.backward import ExchangesGradients
from mlxe_async.errors import MlxeError, StepsDiffer
from mlxe_async.maths import together
from mlxe_async.maths.delay_compensation import DelayCompensation
from mlxe_async.roles.learner import Learner, Tally
from mlxe_async.roles.states import PREFIX, take_up
from mlxe_async.roles.worker import NOTHING, Worker
from mlxe_async.rows import Array
from mlxe_async.seeds import derive_seed

HARMLESS = 200
"""Pushes without any compensation after which that is told."""
NEWEST = 2**62
"""A label that no version reaches."""
Entries = Sequence[tuple[str, NDArray[Any]]]
"""The exchanges of an update, in their order, each of a kind of `maths.together.KINDS`."""


class PushSlot(Protocol):
    """A place where a push lies, `ipc.shared.pushes.PushSlot`."""

    def write(self, number: int, entries: Entries) -> int:
        """Put the push of a number here; returns its bytes."""

    def read(self, number: int) -> Entries:
        """The push of a number.

        Raises:
            CorruptRecord: it does not lie here whole.
        """


class Recorder:
    """A group of one, which remembers what it was given."""

    workers = 1

    def __init__(self) -> None:
        self.entries: list[tuple[str, NDArray[Any]]] = []

    def gathered(self, kind: str, numbers: NDArray[Any]) -> list[NDArray[Any]]:
        """See `maths.together.Group.gathered`."""
        self.entries.append((kind, numbers.copy()))
        return [numbers]


class Given:
    """A group of one, for which another worker has given all that is asked for.

    Args:
        entries: in the order in which they are asked for.
    """

    workers = 1

    def __init__(self, entries: Entries) -> None:
        self._entries, self._used = entries, 0

    def gathered(self, kind: str, numbers: NDArray[Any]) -> list[NDArray[Any]]:
        """See `maths.together.Group.gathered`.

        Raises:
            StepsDiffer: something else was given.
        """
        asked = f"{kind} of {numbers.nbytes:,} bytes"
        given, array = self._entries[self._used] if self._used < len(self._entries) else ("nothing", numbers[:0])
        if (given, array.nbytes) != (kind, numbers.nbytes):
            raise StepsDiffer(
                f"exchange {self._used + 1} of an update: the learner asks for {asked}, the worker gave {given} of "
                f"{array.nbytes:,} bytes; expected the same steps of both: their number must not depend on chance"
            )
        self._used += 1
        return [array]

    def expect_end(self) -> None:
        """Make sure that nothing is left.

        Raises:
            StepsDiffer: something is.
        """
        if left := len(self._entries) - self._used:
            raise StepsDiffer(f"an update: the worker made {left} exchanges more than the learner, expected the same")


class Pushing:
    """A worker's place in an update that it makes alone.

    Args:
        lane: the number of its executor, whose rollouts it learns from.
        seed: of the run.
    """

    def __init__(self, lane: int, seed: int) -> None:
        self.part = (lane, 1)
        self._seed, self._exchanges = seed, ExchangesGradients()

    @contextlib.contextmanager
    def recording(self, algorithm: Any, number: int, *, twin: bool) -> Iterator[Recorder]:
        """Record inside; random numbers follow from the seed, the worker and the push's number.

        Raises:
            MlxeError: the algorithm is not derived from `Algorithm`, whose leaves and generators are known.
        """
        expect_known(algorithm)
        drawing.reseed(algorithm, derive_seed(self._seed, "worker", self.part[0], number))
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
        acted: version and weights (P,) that the executor acted by.
        slot: where its pushes go.
        how: as for `Worker`, with a `team` of `Pushing`.
    """

    def __init__(self, *args: Any, acted: Callable[[], tuple[int, Array]], slot: PushSlot, **how: Any) -> None:
        super().__init__(*args, max_policy_lag=0, **how)
        self._pushing: Pushing = how["team"]
        self._acted, self._slot = acted, slot

    def differentiate(
        self, plan: Mapping[str, Any], *, number: int, env_steps: int, episodes: int, updates: int
    ) -> dict[str, Any]:
        """Make the gradients of a plan, by the weights that its rows were played by, and push them.

        Args:
            plan: from `Memorizer.memorize`, rollouts of this worker's executor.
            number: of the push.
            env_steps: environment steps of the run so far.
            episodes: finished episodes of the run so far.
            updates: updates of the run so far.

        Returns:
            `version` of the weights, `nbytes` that were pushed, and `done`, as of `Learner.learn`. Rows that were
            played by other weights are dropped, and nothing is pushed where none are left.

        Raises:
            MlxeError: the learner's state cannot be had.
            UpdateFailed: the update raised.
        """
        version, flat = self._acted()
        self._go_on_from(version, flat)
        clock = Clock(env_steps=env_steps, episodes=episodes, updates=updates, version=version)
        with self._pushing.recording(self.algorithm, number, twin=self._updates.twin is not None) as recorder:
            done = self._learned(plan, clock, usable=True)
        nbytes = self._slot.write(number, recorder.entries) if done["updates"] else 0
        gradients = sum(kind == together.GRADIENT for kind, _ in recorder.entries)
        if done["updates"] and not gradients:
            raise StepsDiffer(
                f"{type(self.algorithm).__name__} has learned without a gradient of `backward`, expected one to push: "
                'try schedule.gradients = "learner"'
            )
        return {"version": version, "nbytes": nbytes, "done": done}

    def _go_on_from(self, version: int, flat: Array) -> None:
        found = self._keeper.find(NEWEST)
        if found is None or not self._keeper.take_up(found, version, flat):
            raise MlxeError(f"worker {self._pushing.part[0]}: expected the learner's kept state, found none")
        self._followed.version = NOTHING
        self._has_learned = True


class ParameterServer(Learner):
    """Steps by what workers push.

    Args:
        slots: where the pushes of each worker are.
        compensation: moves gradients to where the weights are now; None: they are applied as they come.
        how: as for `Learner`; with `compensation` without twins, whose gradients have another order.
    """

    def __init__(self, slots: Sequence[PushSlot], *, compensation: DelayCompensation | None = None, **how: Any) -> None:
        super().__init__(**how)
        self._compensation, self._harmless = compensation, 0
        self._slots, self._exchanges = slots, ExchangesGradients()
        self._push: tuple[Mapping[str, Any], Entries] = {}, []
        self._few: bool | None = None

    def learn(self, plan: Mapping[str, Any], *, push: Mapping[str, Any] | None = None, **how: Any) -> dict[str, Any]:
        """Do an update by a push, then publish; see `Learner.learn`.

        Args:
            plan: whose rows the push was made of.
            push: its `worker` and `number`, and what the worker answered.
            how: as for `Learner.learn`.

        Raises:
            CorruptRecord: the push does not lie whole in its memory.
        """
        if self.has_answered(how.get("call")):
            return super().learn(plan, **how)
        if push is not None:
            expect_known(self.algorithm)
            self._push = push, self._slots[push["worker"]].read(push["number"])
        return super().learn(plan, **how)

    def _learned(self, plan: Mapping[str, Any], clock: Clock, *, usable: bool) -> dict[str, Any]:
        push, entries = self._push
        if not plan["updates"]:
            return super()._learned(plan, clock, usable=usable)
        metrics = push["done"]["metrics"]
        if self._compensation is not None:
            entries, told = self._compensated(self._compensation, entries, push["version"], clock.version)
            metrics = metrics | told
        whole, _ = self.memory.gather(plan)
        gradients = sum(kind == together.GRADIENT for kind, _ in entries)
        few = fewest(whole, gradients, self._per_rollout)
        if self._few is None:
            self._few = self._is_alike(few, whole, entries, clock)
        else:
            self._step(few if self._few else whole, entries, clock)
        lag = clock.version - push["version"]
        return {**push["done"], "lag_min": lag, "lag_mean": float(lag), "lag_max": lag, "metrics": metrics}

    def _compensated(
        self, how: DelayCompensation, entries: Entries, version: int, newest: int
    ) -> tuple[Entries, dict[str, float]]:
        """Entries with a gradient that is moved to the newest weights, and what is told of it."""
        self._exchanges.follow(self.algorithm)
        now = self._exchanges.weights()
        how.note(newest, now)
        pieces = [array for kind, array in entries if kind == together.GRADIENT]
        gradient = np.concatenate([piece[1:] for piece in pieces]) if pieces else np.zeros(0, np.float32)
        if gradient.shape != now.shape:
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

    @property
    def _per_rollout(self) -> set[str]:
        return {column.name for column in self.memory.shape.first_layout.columns}

    def _step(self, batch: dict[str, Array], entries: Entries, clock: Clock) -> None:
        if self._updates.twin is None:
            self._exchanges.follow(self.algorithm)
        given = Given(entries)
        with together.learning_in(given):
            self._update(batch, clock, Tally())
        given.expect_end()

    def _is_alike(self, few: dict[str, Array], whole: dict[str, Array], entries: Entries, clock: Clock) -> bool:
        """Do an update by all rows; whether a few of them would have led to the same numbers."""
        before, outcome = self._state(), None
        with contextlib.suppress(Exception):  # then it takes all rows, and says what is wrong with them
            self._step(few, entries, clock)
            outcome = self._state()
        take_up(self.algorithm, before)
        self._step(whole, entries, clock)
        return outcome is not None and _same(outcome, self._state())

    def _state(self) -> dict[str, Array]:
        return {PREFIX + name: np.array(array) for name, array in self.algorithm.state().items()}


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Return whether two states are alike but for those of generators, which are whole numbers."""
    return one.keys() == other.keys() and all(
        array.dtype.kind != "f" or np.array_equal(array, other[name], equal_nan=True) for name, array in one.items()
    )


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
