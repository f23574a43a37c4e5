"""CartPole without its velocities, which asks for memory: what all contestants of the table `ppo-lstm` share.

Needs numpy and gymnasium alone, because it runs in the environment of each peer. All have a layer of 64 with tanh, on
it an LSTM of 64 for the actor and one for the critic, and linear outputs; 8 environments of 128 steps in a rollout; 4
epochs of 4 minibatches, each with the whole sequences of 2 environments; Adam with the same constant rate; one thread.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import measuring
import numpy as np

HIDDEN, SHOWN = (1, 3), (0, 2)
ENVS, ROLLOUT, EPOCHS, MINIBATCHES, SIZE = 8, 128, 4, 4, 64
RATE, DISCOUNT, LAMBDA, CLIP, ENTROPY, VALUE, NORM, EPSILON = 5e-3, 0.98, 0.95, 0.2, 0.01, 0.05, 0.5, 1e-5
EPISODES = 100


class Hidden(gymnasium.ObservationWrapper):
    """Positions and angles alone."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(SHOWN),), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Of shape (2,)."""
        return observation[list(SHOWN)]


def make() -> gymnasium.Env:
    """One environment; episodes end after 500 steps."""
    return Hidden(gymnasium.make(measuring.ENV))


@dataclass(frozen=True)
class Asked:
    """The command line.

    Args:
        seed: of everything random.
        steps: environment steps, all environments together.
        warm_up: seconds after the first update that do not count for the rate.
    """

    seed: int
    steps: int
    warm_up: float


def asked() -> Asked:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--warm-up", type=float, default=3.0)
    given = parser.parse_args()
    return Asked(given.seed, given.steps, given.warm_up)


class Progress:
    """Rows learned from per second, and returns of the episodes that ended."""

    def __init__(self, warm_up: float) -> None:
        self._ends, self._warm_up, self._cpu = list[tuple[float, int]](), warm_up, time.process_time()
        self.returns = list[float]()

    def learned(self, steps: int) -> None:
        """Tell, after an update, from how many steps was learned so far."""
        self._ends.append((time.perf_counter(), steps))

    def result(self) -> dict[str, Any]:
        """The rate after the warm-up, CPU time of a step, and the mean return of the last episodes."""
        cpu, steps = time.process_time() - self._cpu, self._ends[-1][1]
        return rate(self._ends, self._warm_up) | last(self.returns) | {"cpu_us_per_step": 1e6 * cpu / steps}


def rate(ends: list[tuple[float, int]], warm_up: float) -> dict[str, float]:
    """Steps per second between the first update's end after the warm-up and the last one's, (seconds, steps) each."""
    start = next(end for end in ends if end[0] >= ends[0][0] + warm_up)
    seconds, steps = ends[-1][0] - start[0], ends[-1][1] - start[1]
    return {"steps_per_second": steps / seconds, "steps": steps, "seconds": seconds}


def last(returns: list[float]) -> dict[str, float]:
    """Mean return of the last episodes that ended."""
    return {"mean_return": float(np.mean(returns[-EPISODES:])), "episodes": len(returns)}
