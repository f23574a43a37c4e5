"""Tests frozen versions with the greedy policy, many at a time.

A test has two rules to choose from. `"cap"`: from each of the fixed restarts the episode must reach the step limit;
the first one that ends earlier ends the test. `"mean_return"`: all episodes run to their end and their mean decides.
Without a rule they run to their end too, and nothing is decided.
Starts, rewards and step limit are the environment's own or the evaluation's, never those of training. A test that is
asked for by hand may begin in adverse starts, or sample its actions (`Sampled`): how far can a policy be trusted?

Where the task has a simulator of its own, all restarts of all waiting versions are one batch of `V x episodes` rows.
New versions are first screened for a few steps among themselves, taking turns with the long tests, so that a hopeless
version is known to be one within milliseconds while a good one is on its way through a million steps.
Other environments are stepped by `VectorTask`, one version after the other.

Which versions happen to share a batch changes nothing in their tests: each keeps its own rows and its own matrices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlxe_async.roles.benches import bench_for
from mlxe_async.roles.trials import Floats, GreedyPolicy, Rules, Sampled, Starts, Trial, Verdict, joined

Judged = Callable[[Verdict, Floats, Callable[[], None], str | None], object]
__all__ = ["Evaluator", "GreedyPolicy", "Rules", "Sampled", "Starts", "Verdict", "joined"]


class Evaluator:
    """Holds the versions under test and moves them on a little at a time.

    Args:
        algorithm: whose greedy policy is tested.
        task: the `[task]` table.
        evaluation: the `[evaluation]` table: `rule`, `episodes`, `max_episode_steps`, `screen_steps`, `in_flight`
            (how many share the long batch), `threshold` (of the mean return), `seed`; and `starts`, see `Rules`.

        judged: called with each verdict before it is handed out, the weights (P,), `tick` and the wrappers' state.

    Raises:
        TaskError: the environment cannot be made, or has no adverse starts.
        EnvironmentFault: its constructor raised.
    """

    def __init__(
        self,
        algorithm: GreedyPolicy,
        task: Mapping[str, Any],
        evaluation: Mapping[str, Any],
        judged: Judged | None = None,
    ) -> None:
        self.rules, self._judged = Rules.from_mapping(evaluation), judged
        self._bench = bench_for(algorithm, task, self.rules)
        self._tests: list[Trial] = []

    @property
    def in_flight(self) -> int:
        """Versions that were added and whose verdict has not been handed out."""
        return len(self._tests)

    @property
    def room(self) -> int:
        """How many more versions may be added without keeping others waiting."""
        return max(0, self.rules.in_flight - len(self._tests))

    def add(self, version: int, flat: Floats, state: str | None = None) -> None:
        """Put a version under test; its weights (P,) are copied.

        Args:
            version: its number.
            flat: its weights.
            state: what wrappers know, as of `VectorTask.state_of`; None: what they knew when they were made.

        Raises:
            ValueError: the weights are not a vector as long as the others'.
        """
        flat = np.array(flat, np.float32)
        expected = self._tests[0].flat.shape if self._tests else (flat.size,)
        if flat.shape != expected:
            raise ValueError(f"version {version}: expected weights of shape {expected}, got {flat.shape}")
        self._tests.append(Trial(version, flat, self.rules, state))

    def advance(self, seconds: float | None = None, tick: Callable[[], None] = lambda: None) -> list[Verdict]:
        """Go on testing until a verdict can be handed out, the time is over, or nothing is left to test.

        Args:
            seconds: how long at most, to within one block of ticks (some milliseconds), of which at least one is run;
                None: until all is decided.
            tick: called often, to show that this is alive.

        Returns:
            Verdicts in the order in which their versions were added; a version that is decided before an earlier one
            is kept back until that one is decided too.
        """
        end = None if seconds is None else time.monotonic() + seconds
        verdicts: list[Verdict] = []
        while self._tests:
            self._bench.run([test for test in self._tests if not test.done], tick)
            tick()
            verdicts += self._take_ready(tick)
            if end is not None and (verdicts or time.monotonic() >= end):
                break
        return verdicts

    def clear(self) -> None:
        """Drop all versions under test, without verdicts."""
        self._tests = []

    def close(self) -> None:
        """Drop all tests and close the environments; may be called twice."""
        self.clear()
        self._bench.close()

    def _take_ready(self, tick: Callable[[], None]) -> list[Verdict]:
        ready = 0
        while ready < len(self._tests) and self._tests[ready].done:
            ready += 1
        verdicts = [test.verdict() for test in self._tests[:ready]]
        if self._judged is not None:
            for verdict, test in zip(verdicts, self._tests, strict=False):
                self._judged(verdict, test.flat, tick, test.state)
        self._tests = self._tests[ready:]
        return verdicts
