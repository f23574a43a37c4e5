"""The handle of the evaluator: a test that its process did not live to end is repeated, or dropped for a later one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from mlxe_async.errors import ProcessDied
from mlxe_async.ipc.processes.process import Process
from mlxe_async.ipc.shared.weights import WeightsReader, WeightsWriter
from mlxe_async.rows import Array
from mlxe_async.settings import Evaluation
from mlxe_async.storage.safe_text import visible
from mlxe_async.supervisor.checkpointing.solved import SolvedJudge
from mlxe_async.supervisor.handles.answers import is_evaluated
from mlxe_async.supervisor.handles.context import HandleContext

TEST_SLICE_S = 0.05


class EvaluatorHandle:
    """The evaluator. The versions under test are kept here too, so that the one that passes can be saved.

    Args:
        process: where it lives; None: evaluation is off, and every verb returns at once.
        context: what is shared.
        weights: where versions are published.
        tested: where the version to be tested is laid down for the evaluator.
        rules: how many versions are tested at once and how often, and how many must pass in a row.
        judged: called with each version that was tested, its weights (P,) and its mean return; not after a fault.
        solved: called once with the version and weights that count as solved.
    """

    def __init__(
        self,
        process: Process | None,
        context: HandleContext,
        *,
        weights: WeightsReader,
        tested: WeightsWriter,
        rules: Evaluation,
        judged: Callable[[int, Array, float], None],
        solved: Callable[[int, Array], None],
    ) -> None:
        self.process = process
        self.tests = 0
        self._context, self._weights, self._tested = context, weights, tested
        self._rules, self._judge = rules, SolvedJudge(rules.passes)
        self._judged, self._solved = judged, solved
        self._under_test: dict[int, Array] = {}
        self._in_flight = 0
        self._last_episode = self._last_version = self._last_steps = 0
        self._is_solved = False
        # Versions under test -> the clocks before they were taken up.
        self._before: dict[int, tuple[int, int, int]] = {}

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Facts, and weights that may still turn out to have solved the task, as of before the tests under way."""
        now = (self._last_episode, self._last_version, self._last_steps)
        last_episode, last_version, last_steps = next(iter(self._before.values()), now)
        facts = {
            "tests": self.tests,
            "last_episode": last_episode,
            "last_version": last_version,
            "last_steps": last_steps,
            "is_solved": self._is_solved,
            "streak": list(self._judge.streak),
            "streak_length": self._judge.length,
        }
        return facts, {str(version): self._under_test[version] for version in self._keep}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Go on from there; what was being tested is tested again, or a later version is."""
        self.tests, self._is_solved = facts["tests"], facts["is_solved"]
        self._last_episode, self._last_version = facts["last_episode"], facts["last_version"]
        self._last_steps = facts.get("last_steps", 0)
        self._judge.go_on(facts["streak"], facts.get("streak_length"))
        self._under_test = {int(version): flat for version, flat in arrays.items()}

    @property
    def _keep(self) -> list[int]:
        """Versions that passed and may turn out to be the first of enough of them."""
        return [] if self._is_solved else [version for version in self._judge.streak if version in self._under_test]

    async def evaluate(self, version: int | None = None) -> None:
        """Test; see `schedules.verbs`. At most one version is taken up for each finished training episode."""
        context = self._context
        if self.process is None:
            if version is None:
                await context.wait_until(lambda: False)
            return
        if version is None:
            if not await context.wait_until(lambda: self._in_flight > 0 or self._is_due):
                return
            await self._advance(self.process, TEST_SLICE_S)
        elif self._is_due:
            await self._advance(self.process, None)

    @property
    def _is_due(self) -> bool:
        """A training episode has finished since a version was last taken up, there is a new one and room for it."""
        newest = self._weights.latest()
        return (
            self._context.counters.episodes > self._last_episode
            and self._context.counters.env_steps >= self._last_steps + self._rules.interval_steps
            and newest > self._last_version
            and self._in_flight < self._rules.in_flight
        )

    async def _advance(self, process: Process, seconds: float | None) -> None:
        add = self._take_up() if self._is_due else None
        while True:
            try:
                done = await process.call(
                    "evaluate",
                    role="evaluator",
                    check=partial(is_evaluated, under_test=self._before),
                    add=add,
                    **({} if add is None else {"state": self._context.publications.state_of(add)}),
                    seconds=seconds,
                )
                break
            except ProcessDied:
                if self._context.ending:
                    return
                if seconds is not None:
                    # The tests under way went down with their process; later versions are tested instead.
                    self._forget_but(self._keep)
                    self._before.clear()
                    self._in_flight = 0
                    return
        self._in_flight = done["in_flight"]
        process.note_progress()
        for sentence in done["odd"]:
            self._context.log.warn(visible(sentence, 500), "evaluator")
        for verdict in done["verdicts"]:
            self._hear(verdict)
        self._context.bell.ring()

    def _take_up(self) -> int | None:
        flat = np.empty(self._weights.parameters, dtype=np.float32)
        version = self._weights.read(flat)
        if version is None or version <= self._last_version:
            return None
        self._tested.publish(flat)
        self._before[version] = (self._last_episode, self._last_version, self._last_steps)
        self._under_test[version] = flat
        self._context.publications.hold(version)
        self._last_episode, self._last_version = self._context.counters.episodes, version
        self._last_steps = self._context.counters.env_steps
        return version

    def _hear(self, verdict: dict[str, Any]) -> None:
        self.tests += 1
        self._before.pop(verdict["version"], None)
        judged = verdict["passed"] is not None
        first = self._judge.feed(verdict["version"], passed=verdict["passed"]) if judged else None
        self._context.log.evaluated(verdict, self._judge.length)
        if not verdict["fault"] and verdict["version"] in self._under_test:
            self._judged(verdict["version"], self._under_test[verdict["version"]], verdict["return_mean"])
        if first is not None and not self._is_solved:
            self._is_solved = True
            self._solved(first, self._under_test[first])
        # Weights of versions that may still turn out to be the first of the passing ones are kept.
        keep = self._keep
        self._forget_but({version for version in self._under_test if version in keep or version > verdict["version"]})

    def _forget_but(self, needed: Collection[int]) -> None:
        self._under_test = {version: flat for version, flat in self._under_test.items() if version in needed}
        self._context.publications.release(needed)
