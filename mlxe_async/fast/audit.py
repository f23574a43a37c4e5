"""An audit while running: now and then an update is done a second time by the algorithm's own file, and compared.

The twin's update comes first, and its result is what the run goes on with. Then weights, optimiser, generators and all
else that the algorithm keeps are put back to where they were, and the file's own update is done in plain torch on the
same rows. Both call the same optimiser. At each of its steps the two gradients are compared, and then the file goes on
with the twin's, so that both walk the same way however far it leads: after a hundred steps of their own, equal formulas
would be apart by rounding alone. In the end both must have changed their state alike, and return the same priorities.

Rounding may also decide something: which of two equal values is the largest, on which side of a bound a ratio lies.
Where all values are alike, it is most of what advantages are. A difference counts only if the file itself does not
differ as much when its weights and its layers' outputs change by a few units of their last place. Then the state
that the twin came to is put back, so that the run's numbers are the same with and without.

The first update and each `every`-th are compared whole. Updates 2, 4, 8 and so on come close together at the start: of
those the first few steps are compared. Where numpy goes through the sequences of recurrent cells, there is no twin, and
each of these ways is compared with torch's, see `cells`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mlxe_async.algorithms.interface import Clock, Metrics, Rows
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.errors import AuditFailed
from mlxe_async.fast import Updates
from mlxe_async.fast.rounding import rounded_otherwise
from mlxe_async.maths import categorical, together
from mlxe_async.networks.ways import watched
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch

# Of the norm: how far a gradient or a step may be from the file's own.
NEAR = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 2e-2}
TRIALS = 8
MOST_BYTES = 1 << 26  # of gradients that are remembered of one update; what follows them is not compared
EARLY_STEPS = 2  # of an update that are compared between the first one and the `every`-th
ROUNDED = 2.0**-22  # of a state's norm: how far apart equal steps may end by rounding alone
PRIORITIES_NEAR = 1e-3
MEASURED_NEAR = 1e-2
LOG_PROB_NEAR = 1e-3
LOG_PROB_SHARE = 0.02  # of the rows may differ: where two actions are equally good, rounding chooses


class _Enough(Exception):
    """As much of an update was done as is to be compared."""


class _Optimiser:
    """Stands in for one of an algorithm's optimisers, and shows the gradient before each step."""

    def __init__(self, real: FlatOptimiser, before: Callable[[torch.Tensor], None]) -> None:
        self._real, self._before = real, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def step(self, *rate: float) -> None:
        self._before(self._real.gradient)
        self._real.step(*rate)


class _Walk(NamedTuple):
    """What became of an update."""

    state: Mapping[str, Array] | None
    metrics: Metrics
    priorities: Array | None
    steps: int


class Audit:
    """Does an algorithm's updates, and does some twice: numbers 1, 2, 4, 8 and so on, then each `every`-th one.

    Args:
        updates: the way in which they are done.
        every: 0: never.
        beat: called now and then while it takes longer.
        temperatures: those that executors act by, one of which rows follow; none: log-probabilities are not checked.
    """

    def __init__(
        self,
        updates: Updates,
        every: int,
        beat: Callable[[], None] = lambda: None,
        temperatures: Sequence[float] = (1.0,),
    ) -> None:
        self._updates, self._every, self._beat, self._done = updates, every, beat, 0
        self._temperatures = temperatures
        self._algorithm: Any = updates.algorithm
        self._is_trial = False
        self.audited = 0
        "Updates that were compared so far."

    def update(
        self, batch: Rows, clock: Clock, published: tuple[int, Array] | None = None, *, may_fall_back: bool = False
    ) -> tuple[Metrics, Array | None]:
        """Learn from one batch.

        Args:
            batch: see `algorithms.interface.Algorithm.update`, as is the clock.
            clock: how far the run is.
            published: the newest version and its weights (P,), by which its rows' log-probabilities are checked.
            may_fall_back: learn by the file from now on if there is a difference, as nothing learned was published.

        Raises:
            AuditFailed: what was learned is not what is written.
        """
        self._done += 1
        if not self._is_due():
            return self._updates.update(batch, clock)
        if together.are_several():
            return self._tried_before(batch, clock, published)
        may_fall_back = may_fall_back and hasattr(self._algorithm, "restore")
        before = self._algorithm.state() if may_fall_back or self._updates.twin is not None else {}
        try:
            if self._updates.twin is None:
                return self._with_cells_compared(batch, clock)
            if published is not None:
                self._check_log_probs(batch, *published)
            return self._audited(batch, clock, before)
        except AuditFailed as error:
            if not may_fall_back:
                changed = self._updates.changed()
                raise AuditFailed(f"{error}; {f'{changed} was changed' if changed else _ADVICE}") from error
            self._algorithm.restore(before)
            self._updates.as_written(f"{error}; {_REPORT}")
            return self._updates.update(batch, clock)

    def _tried_before(
        self, batch: Rows, clock: Clock, published: tuple[int, Array] | None
    ) -> tuple[Metrics, Array | None]:
        """Compare an update by this worker's own rows, which is then taken back, and learn together with the others.

        They do not audit at the same time: what is exchanged is not compared twice.
        """
        before = self._algorithm.state()
        self._done -= 1
        self._is_trial = True
        try:
            with together.alone():
                self.update(batch, clock, published)
        finally:
            self._is_trial = False
        self._algorithm.restore(before)
        return self._updates.update(batch, clock)

    def _is_due(self) -> bool:
        number, every = self._done, self._every
        if not every or not self._updates.is_fast:
            return False
        return number % every == 0 or (number < every and number & (number - 1) == 0)

    def _is_whole(self) -> bool:
        """Return whether all steps of this update are compared, and what it led to."""
        return self._done == 1 or self._done % self._every == 0

    def _with_cells_compared(self, batch: Rows, clock: Clock) -> tuple[Metrics, Array | None]:
        from mlxe_async.fast.cells import Comparison

        with watched(Comparison(None if self._is_whole() else EARLY_STEPS)):
            found = self._updates.update(batch, clock)
        self.audited += 1
        return found

    # -- gradient and step --

    def _audited(self, batch: Rows, clock: Clock, before: Mapping[str, Array]) -> tuple[Metrics, Array | None]:
        algorithm = self._algorithm
        self._updates.expect_unchanged()
        taken: list[torch.Tensor] = []
        most = math.inf if self._is_whole() else EARLY_STEPS

        def note(step: int, gradient: torch.Tensor) -> None:
            if self._is_trial and step >= most:
                raise _Enough  # what the rest would come to is taken back
            if not taken or (len(taken) < most and (len(taken) + 1) * gradient.nbytes <= MOST_BYTES):
                taken.append(gradient.clone())

        counted = self._with(note)
        result: tuple[Metrics, Array | None] = ({}, None)
        try:
            result = counted(lambda: self._updates.update(batch, clock))
        except _Enough:
            counted.steps += 1  # the one that was not made
        after, steps = algorithm.state(), counted.steps
        twin = _Walk(after if steps == len(taken) else None, *result, steps)
        try:
            self._compare(batch, clock, before, twin, taken)
        finally:
            algorithm.restore(after)
        self.audited += 1
        return result

    def _compare(
        self, batch: Rows, clock: Clock, before: Mapping[str, Array], twin: _Walk, taken: list[torch.Tensor]
    ) -> None:
        found: list[torch.Tensor] = []
        own = self._as_written(batch, clock, before, taken, found.append)
        apart = [float((one - other).norm()) for one, other in zip(found, taken, strict=False)]
        norms = [float(one.norm()) for one in taken]
        near = NEAR[self._precision]
        told = [step for step, far in enumerate(apart) if not far <= near * norms[step] + 1e-9]
        off = _priorities_apart(own, twin)
        wrong = self._states_differ(before, own, twin) or ("" if told else self._metrics_differ(own, twin))
        if not wrong and not off <= PRIORITIES_NEAR:
            wrong = f"priorities differ by {off:.2g} of their norm, expected at most {PRIORITIES_NEAR:g}"
        if not told and not wrong:
            return
        # Does the file differ as much from itself, by a few units in the last place?
        rng, reach, counts, off_by_rounding = np.random.default_rng(0), [0.0] * len(found), set(), 0.0
        differs_by_priorities = wrong.startswith("priorities")
        for _ in range(TRIALS):
            self._beat()
            other: list[torch.Tensor] = []
            again = self._as_written(batch, clock, before, taken, other.append, rng)
            counts.add(again.steps)
            off_by_rounding = max(off_by_rounding, _priorities_apart(own, again))
            moved = (float((one - was).norm()) for one, was in zip(other, found, strict=False))
            reach = [max(far, most) for far, most in zip(moved, reach, strict=False)]
            if own.steps != twin.steps and twin.steps in counts:
                wrong = ""  # it was rounding that ended one of them earlier
            if differs_by_priorities and off <= 2 * off_by_rounding + PRIORITIES_NEAR:
                wrong = ""
            told = [step for step in told if not apart[step] <= 2 * reach[step] + near * norms[step]]
            if not told and not wrong:
                return  # further trials only widen what rounding may do
        if told:
            step = told[0]
            raise AuditFailed(
                f"audit of update {clock.updates + 1}: the gradient of its step {step + 1} differs by "
                f"{apart[step] / max(norms[step], 1e-30):.2g} of its norm from that of "
                f"{type(self._algorithm).__name__} as it is written, expected at most {near:g}"
            )
        if wrong:
            raise AuditFailed(f"audit of update {clock.updates + 1}: {wrong}")

    def _as_written(
        self,
        batch: Rows,
        clock: Clock,
        before: Mapping[str, Array],
        taken: list[torch.Tensor],
        note: Callable[[torch.Tensor], None],
        rng: np.random.Generator | None = None,
    ) -> _Walk:
        """The file's own update from the same state, in the steps that were taken; its gradients are noted.

        With a generator, weights and layers' outputs are changed by a few units of their last place.
        """
        algorithm = self._algorithm
        algorithm.restore(before)
        rounding = contextlib.nullcontext() if rng is None else rounded_otherwise(algorithm, self._precision, rng)

        def follow(step: int, gradient: torch.Tensor) -> None:
            if step >= len(taken) or gradient.shape != taken[step].shape:
                raise _Enough
            note(gradient.clone())
            gradient.copy_(taken[step])

        counted = self._with(follow)
        try:
            with rounding:
                metrics, priorities = counted(lambda: learned(algorithm, batch, clock))
        except _Enough:
            return _Walk(None, {}, None, counted.steps + 1)
        return _Walk(algorithm.state(), metrics, priorities, counted.steps)

    def _states_differ(self, before: Mapping[str, Array], own: _Walk, twin: _Walk) -> str:
        """Return what changed differently, in words; "" if all changed alike, or if the end was not reached."""
        if twin.state is None:
            return ""
        if own.steps != twin.steps or own.state is None:
            return f"it made {twin.steps} steps, expected {own.steps} or so, as it is written"
        near = NEAR[self._precision]
        for name, found in twin.state.items():
            expected = own.state[name]
            was = before.get(name)
            if expected.dtype.kind == "f" and was is not None and was.shape == expected.shape:
                found, expected, was = (one.astype(np.float64) for one in (found, expected, was))
                far, moved = float(np.linalg.norm(found - expected)), float(np.linalg.norm(expected - was))
                if not far <= near * moved + ROUNDED * float(np.linalg.norm(expected)):
                    apart = f"{far / max(moved, 1e-30):.2g} of its norm, expected at most {near:g}"
                    return f"the change of {name} differs by {apart}"
            elif not np.array_equal(found, expected):
                return f"{name} differs"
        return ""

    def _metrics_differ(self, own: _Walk, twin: _Walk) -> str:
        """Return what was measured differently, in words; where rounding decided something, so it may be."""
        for name, value in own.metrics.items():
            if not abs(twin.metrics.get(name, np.inf) - value) <= MEASURED_NEAR * (1 + abs(value)):
                return f"{name} was measured as {twin.metrics.get(name)}, expected {value}"
        return ""

    @property
    def _precision(self) -> str:
        return str(getattr(self._algorithm.settings, "precision", "float32"))

    def _with(self, before: Callable[[int, torch.Tensor], None]) -> _Watched:
        return _Watched(self._algorithm, before)

    # -- what was stored --

    def _check_log_probs(self, batch: Rows, version: int, vector: Array) -> None:
        """Live rows say what the version that acted would say, by the learner's network, at one of the temperatures."""
        expected_of = getattr(self._updates.twin, "log_probs", None)
        if expected_of is None or not self._temperatures:
            return
        live = batch["version"] == version
        if "valid" in batch:
            live &= batch["valid"].astype(bool)
        if not live.any():
            return
        obs, action, stored = (batch[name][live] for name in ("obs", "action", "log_prob"))
        found = expected_of(vector, obs)
        if found is None:
            return
        log_probs, largest = found
        each = [_at(log_probs, one)[np.arange(len(action)), action.astype(np.int64)] for one in self._temperatures]
        nearest = np.abs(np.stack(each) - stored).argmin(0)
        expected = np.stack(each)[nearest, np.arange(len(action))]
        near = LOG_PROB_NEAR if self._precision == "float32" else 100 * LOG_PROB_NEAR
        off = ~(np.abs(stored - expected) <= near * (1 + np.abs(expected)) + 1e-5 * largest)
        if off.sum() > max(2, LOG_PROB_SHARE * len(off)):
            worst = int(np.nanargmax(np.where(off, np.abs(stored - expected), -1)))
            raise AuditFailed(
                f"audit of rows of version {version}: {int(off.sum())} of {len(off)} stored log-probabilities differ "
                f"from the learner's network, expected {expected[worst]:.6g}, got {stored[worst]:.6g}"
            )


def _at(log_probs: Array, temperature: float) -> Array:
    """Log-probabilities (N, A) at a temperature."""
    return log_probs if temperature == 1.0 else np.asarray(categorical.log_softmax(log_probs / temperature))


class _Watched:
    """Runs something while an algorithm's optimisers are watched, and counts their steps."""

    def __init__(self, algorithm: Any, before: Callable[[int, torch.Tensor], None]) -> None:
        self._parts, self._before, self.steps = vars(algorithm), before, 0

    def __call__(self, work: Callable[[], Any]) -> Any:
        real = {name: one for name, one in self._parts.items() if isinstance(one, FlatOptimiser)}
        self._parts.update({name: _Optimiser(one, self._step) for name, one in real.items()})
        try:
            return work()
        finally:
            self._parts.update(real)

    def _step(self, gradient: torch.Tensor) -> None:
        self._before(self.steps, gradient)
        self.steps += 1


def _priorities_apart(one: _Walk, other: _Walk) -> float:
    """Return how far apart two updates' priorities are, of their norm."""
    if one.priorities is None or other.priorities is None:
        return 0.0 if one.steps != other.steps or one.priorities is other.priorities else np.inf
    first, second = (np.asarray(each, np.float64) for each in (one.priorities, other.priorities))
    if first.shape != second.shape:
        return np.inf
    return float(np.linalg.norm(first - second)) / max(float(np.linalg.norm(first)), 1e-12)


_REPORT = "please report it"
_ADVICE = f"{_REPORT}; learner.fast = false learns by the file as it is written, learner.audit_every = 0 does not look"
