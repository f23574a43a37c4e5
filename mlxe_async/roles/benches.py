"""Where versions are tested: many at once where the task has a simulator of its own, else one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.interface import Acting
from mlxe_async.errors import EnvironmentFault, TaskError
from mlxe_async.roles.trials import Floats, GreedyPolicy, Rules, Trial
from mlxe_async.rows import Array
from mlxe_async.tasks.physics import BLOCK, CartPolePhysics, CartPoleSimulator
from mlxe_async.tasks.vector import VectorTask

FAULTS_PER_TEST = 3
STEPS_AT_ONCE = 64  # of one version, before another has its turn


class Bench(Protocol):
    """Where tests are run: one block of ticks for some of the undecided ones, which it chooses itself."""

    def run(self, undecided: Sequence[Trial], tick: Callable[[], None]) -> None:
        """Move some of the undecided tests on by at most a block of steps, calling `tick` now and then."""
        ...

    def close(self) -> None:
        """Let go of environments and arrays."""
        ...


def bench_for(algorithm: GreedyPolicy, task: Mapping[str, Any], rules: Rules) -> Bench:
    """The bench that fits the environment.

    Raises:
        TaskError: the environment cannot be made, or has no adverse starts and they are asked for.
        EnvironmentFault: its constructor raised.
    """
    one = VectorTask(task, 1, evaluation=True)
    one.close()
    if one.simulator is not None and (rules.starts != "standard" or not getattr(algorithm, "carry", ())):
        return SimulatorBench(algorithm, rules, one.simulator, one.spaces.observation_shape[0])
    if rules.starts != "standard":
        raise TaskError(f'adverse starts: are those of plain CartPole, got task.env = "{task["env"]}"')
    return TaskBench(algorithm, rules, task)


@dataclass
class _Batch:
    """Versions that share arrays; made anew whenever its members change."""

    tests: list[Trial]
    flats: Floats  # (V, P)
    rows: CartPolePhysics
    obs: Floats  # (V, B, O), those of the rows


class SimulatorBench:
    """All restarts of several versions as rows of one batch of the task's own simulator.

    Policies with memory are tested one at a time.
    """

    def __init__(self, algorithm: GreedyPolicy, rules: Rules, simulator: CartPoleSimulator, features: int) -> None:
        self._algorithm: Any = algorithm
        self._carried = tuple(getattr(algorithm, "carry", ()))
        self._at_once = 1 if self._carried else rules.in_flight
        self._rules = rules
        self._simulator, self._features = simulator, features
        self._starts = simulator.starts(rules.seeds, adverse=rules.starts == "adverse")
        self._long_turn = False
        self._batches: dict[tuple[int, ...], _Batch] = {}  # the screen's and the long tests'

    def run(self, undecided: Sequence[Trial], tick: Callable[[], None]) -> None:
        """One block of ticks for the screen or for the long tests, alternately.

        A block is shorter where a test is about to leave the screen or to reach the cap.
        """
        del tick  # a block takes some milliseconds
        began = time.perf_counter()
        rules = self._rules
        tests = self._next_group(undecided)
        batch = self._batch_of(tests)
        ends = [rules.screen_steps if t.ticks < rules.screen_steps else rules.max_episode_steps for t in tests]
        left = [min(end, rules.max_episode_steps) - t.ticks for end, t in zip(ends, tests, strict=True)]
        ticks = min(BLOCK, *left)
        rows, obs, greedy = batch.rows, batch.obs, self._greedy(batch)
        with np.errstate(all="ignore"):  # rows that have ended whirl on until the end of the block
            for _ in range(ticks):
                rows.tick(greedy(obs).reshape(-1))
                rows.observe()
        fallen = rows.fallen().reshape(len(tests), rules.episodes)
        if fallen.max() >= 0:
            rows.lay_down(np.flatnonzero(fallen >= 0))
        states = rows.state.reshape(len(tests), rules.episodes, -1)
        share = (time.perf_counter() - began) / len(tests)
        for test, when, state in zip(tests, fallen, states, strict=True):
            test.seconds += share
            test.states = state
            self._record(test, when, ticks)

    def close(self) -> None:
        """Let go of the arrays."""
        self._batches = {}

    def _greedy(self, batch: _Batch) -> Callable[[Floats], Array]:
        """Return what chooses the actions (V, B) of the batch's versions for observations (V, B, O)."""
        if not self._carried:
            return partial(self._algorithm.greedy_many, batch.flats)
        (test,) = batch.tests
        self._algorithm.load(test.flat)
        acting = test.acting = test.acting or Acting().start(self._carried, self._rules.episodes)

        def greedy(obs: Floats) -> Array:
            actions: Array = self._algorithm.greedy(obs[0], acting)
            acting.began = np.zeros(self._rules.episodes, bool)
            return actions

        return greedy

    def _next_group(self, undecided: Sequence[Trial]) -> list[Trial]:
        screen = [test for test in undecided if test.ticks < self._rules.screen_steps][: self._at_once]
        long = [test for test in undecided if test.ticks >= self._rules.screen_steps][: self._at_once]
        self._long_turn = bool(long) and (not self._long_turn or not screen)
        return long if self._long_turn else screen

    def _record(self, test: Trial, fallen: NDArray[np.int64], ticks: int) -> None:
        standing = ~test.finished
        falls = standing & (fallen >= 0)
        if self._rules.rule == "cap" and falls.any():
            test.fail(test.ticks + int(fallen[falls].min()) + 1)
        if test.failed_at is not None and not self._rules.in_full:
            ticks = int(fallen[falls].min()) + 1
            test.returns[:] = test.ticks + ticks
        else:
            test.returns[standing] = test.ticks + ticks
            test.returns[falls] = test.ticks + fallen[falls] + 1
            test.finished |= falls
        test.ticks += ticks
        test.steps = int(test.returns.sum())
        test.done = test.done or test.ticks >= self._rules.max_episode_steps or bool(test.finished.all())

    def _batch_of(self, tests: Sequence[Trial]) -> _Batch:
        key = tuple(id(test) for test in tests)
        batch = self._batches.get(key)
        if batch is None:
            states = np.concatenate([self._starts if t.states is None else t.states for t in tests])
            rows = self._simulator.batch(states, self._features)
            obs = rows.obs.reshape(len(tests), self._rules.episodes, self._features)
            batch = _Batch(list(tests), np.stack([test.flat for test in tests]), rows, obs)
            # Two groups take turns; any other arrangement of versions is a thing of the past.
            recent = [old for old in self._batches.values() if not any(test in tests for test in old.tests)]
            self._batches = {tuple(map(id, old.tests)): old for old in recent[-1:]}
            self._batches[key] = batch
        return batch


class TaskBench:
    """One version at a time in environments of any kind, one environment for each restart."""

    def __init__(self, algorithm: GreedyPolicy, rules: Rules, task: Mapping[str, Any]) -> None:
        self._algorithm: Any = algorithm
        self._rules = rules
        self._task = VectorTask(task, rules.episodes, evaluation=True, max_episode_steps=rules.max_episode_steps)
        self._seeds = rules.resets(of_test_set=self._task.episodes is not None)
        self._flats: Floats = np.zeros((1, 0), np.float32)
        self._carried = tuple(getattr(algorithm, "carry", ()))
        self._current: Trial | None = None

    def run(self, undecided: Sequence[Trial], tick: Callable[[], None]) -> None:
        """Up to a block of steps of the oldest version; tick after each."""
        began = time.perf_counter()
        if self._current is not undecided[0]:
            self._current = undecided[0]
            self._flats = self._current.flat[None]
            self._begin(self._current)
        for _ in range(STEPS_AT_ONCE):
            if self._current.done:
                break
            self._step(self._current)
            tick()
        self._current.seconds += time.perf_counter() - began

    def close(self) -> None:
        """Close the environments."""
        self._task.close()

    def _begin(self, test: Trial) -> None:
        self._task.begins_with[:] = [test.state] * self._rules.episodes
        test.obs = np.zeros(
            (self._rules.episodes, *self._task.spaces.observation_shape), self._task.spaces.observation_dtype
        )
        if self._carried:
            self._algorithm.load(test.flat)
            test.acting = Acting().start(self._carried, self._rules.episodes)
        for index in range(self._rules.episodes):
            self._restart(test, index)

    def _step(self, test: Trial) -> None:
        assert test.obs is not None  # noqa: S101 - set by _begin
        running = np.flatnonzero(~test.finished)
        if test.acting is None:
            actions = self._algorithm.greedy_many(self._flats, test.obs[None])[0]
        else:
            actions = self._algorithm.greedy(test.obs, test.acting)
            test.acting.began = np.zeros(self._rules.episodes, bool)
        step = self._task.step(actions, running.tolist())
        test.ticks += 1
        test.obs[running] = step.next_obs[running]
        test.returns += step.raw_reward
        test.steps += int(step.ok.sum())
        for fault in step.faults:
            self._again(test, fault)
        test.finished[step.ended] = True
        if self._rules.rule == "cap":
            for index in step.ended:
                if step.terminated[index]:
                    test.fail(test.ticks)
        test.done = test.done or bool(test.finished.all())

    def _restart(self, test: Trial, index: int) -> None:
        assert test.obs is not None  # noqa: S101 - set by _begin
        test.returns[index] = 0.0
        if test.acting is not None and test.acting.began is not None:
            test.acting.begin(index)
            test.acting.began[index] = True
        try:
            test.obs[index] = self._task.reset(index, self._seeds[index])
        except EnvironmentFault as fault:
            self._again(test, fault)

    def _again(self, test: Trial, fault: EnvironmentFault) -> None:
        """After a fault, the same restart in a new environment; a test that meets several of them is a failed one."""
        test.faults += 1
        if test.faults > FAULTS_PER_TEST:
            test.fault, test.done = fault.detail, True
            return
        try:
            self._task.rebuild(fault.env_index)
        except EnvironmentFault as again:
            test.fault, test.done = again.detail, True
            return
        self._restart(test, fault.env_index)
