"""Measure an environment by random play: scales of what it shows and gives, lengths of episodes, the cost of a step.

Random actions follow from fixed seeds, and the number of steps is fixed where a step is cheap: the same environment
gives the same figures, but for those of time. A slow one is stopped earlier, and `complete` says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np

from mlxe_async.errors import EnvironmentFault
from mlxe_async.rows import Array, Spaces
from mlxe_async.tasks.measured import MOST_STEPS, Measured
from mlxe_async.tasks.vector import VectorTask

MOST_BUSY_S = 0.5
"""Seconds of this thread's own time: other work of the machine changes nothing."""
MOST_S = 2.0
DISCOUNT = 0.99
FIRST_SEED = 1000
VARIES = 1e-6  # least deviation of an entry that counts as one that varies

Limited = Callable[[str], contextlib.AbstractContextManager[None]]


def random_action(spaces: Spaces, rng: np.random.Generator, obs: Array | None = None) -> Array:
    """An action (1, ...); where the observation (O,) says what is allowed, an allowed one."""
    if spaces.actions is not None and not spaces.masked:
        return rng.integers(0, spaces.actions, 1)
    if spaces.action_kind != "box":
        sizes = np.array(spaces.action_sizes)
        preference = rng.random(sizes.sum())
        if obs is not None and spaces.masked:
            preference[~spaces.mask(obs)] = -1.0
        chosen = [int(some.argmax()) for some in np.split(preference, sizes.cumsum()[:-1])]
        return np.array(chosen, np.int64).reshape(1, *spaces.action_shape)
    low, high = (np.clip(bound, -1e3, 1e3) for bound in (spaces.action_low, spaces.action_high))
    return rng.uniform(low, high).astype(np.float32).reshape(1, *spaces.action_shape)


def measured(vector: VectorTask, limited: Limited) -> Measured:
    """Play with random actions: at most 1,000 steps, half a second of this thread's time, or up to a fault.

    Args:
        vector: of one environment, which is reset first.
        limited: entered around each call into the environment's code, which may hang.
    """
    play = _Play(vector, limited)
    with contextlib.suppress(EnvironmentFault):  # a run is told of it by the probe's own steps
        play.on()
    return play.found()


class _Play:
    """An environment under random actions, and all that was seen so far."""

    def __init__(self, vector: VectorTask, limited: Limited) -> None:
        self._vector, self._limited = vector, limited
        self._rng = np.random.default_rng(0)
        self._rewards: list[float] = []
        self._running: list[float] = []
        self._lengths: list[int] = []
        self._observations: list[Array] = []
        self._terminated = 0
        self._seconds = 0.0
        self._complete = False

    def on(self) -> None:
        """Play on until it is enough."""
        vector, call, length, running = self._vector, "reset", 0, 0.0
        began, busy = time.perf_counter(), time.thread_time()
        while len(self._rewards) < MOST_STEPS:
            if time.perf_counter() - began > MOST_S or time.thread_time() - busy > MOST_BUSY_S:
                return
            if call == "reset":
                with self._limited("reset"):
                    obs = vector.reset(0, seed=_seed(len(self._lengths)))
                call, length, running = "first step", 0, 0.0
            action = random_action(vector.spaces, self._rng, obs)
            with self._limited(call):
                stepped = time.perf_counter()
                step = vector.step(action)
                self._seconds += time.perf_counter() - stepped
            if step.faults:
                return
            reward, length = float(step.reward[0]), length + 1
            running = DISCOUNT * running + reward
            self._rewards.append(reward)
            self._running.append(running)
            obs, call = step.next_obs[0], "step"
            if len(vector.spaces.observation_shape) == 1 and not vector.spaces.parts:
                self._observations.append(obs.copy())
            if step.ended:
                self._lengths.append(length)
                self._terminated += int(step.terminated[0])
                call = "reset"
        self._complete = True

    def found(self) -> Measured:
        """Return the facts that this amounts to."""
        steps = len(self._rewards)
        rewards = np.array(self._rewards or [0.0])
        values, counts = np.unique(rewards, return_counts=True)
        varying = self._deviations()
        return Measured(
            steps=steps,
            complete=self._complete,
            episodes=len(self._lengths),
            terminated=self._terminated,
            mean_length=float(np.mean(self._lengths)) if self._lengths else None,
            rewarded=float(1 - counts.max() / len(rewards)),
            commonest_reward=float(values[counts.argmax()]),
            return_deviation=float(np.std(self._running)) if steps else 0.0,
            smallest_deviation=float(varying.min()) if len(varying) else None,
            largest_deviation=float(varying.max()) if len(varying) else None,
            step_seconds=self._seconds / max(1, steps),
        )

    def _deviations(self) -> Array:
        if not self._observations:
            return np.zeros(0)
        deviations = np.array(self._observations, np.float64).std(0)
        return np.asarray(deviations[deviations > VARIES])


def _seed(number: int) -> int:
    """A seed of 32 bits, as all are in training: an environment may take small ones alone."""
    return int(np.random.SeedSequence(FIRST_SEED + number).generate_state(1)[0])
