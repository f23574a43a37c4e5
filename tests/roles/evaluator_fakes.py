"""Policies and environments small enough to know the outcome of their tests."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Linear:
    """Push right where `weights @ obs > 0`; remembers the shape of every batch it was shown."""

    BALANCED = np.array([0.1, 0.3, 1.0, 0.4], np.float32)
    ALWAYS_LEFT = np.zeros(4, np.float32)

    def __init__(self) -> None:
        self.batches: list[tuple[int, ...]] = []

    def greedy_many(self, flats, obs):
        self.batches.append(obs.shape)
        return (np.einsum("vbo,vo->vb", obs, flats[:, : obs.shape[2]]) > 0).astype(np.int64)


class Constant:
    """Always the action that its only weight names."""

    def greedy_many(self, flats, obs):
        return np.repeat(flats[:, :1].astype(np.int64), obs.shape[1], axis=1)


class Corridor(gymnasium.Env):
    """Reward = the action, 0 to 2, for ten steps; action 2 ends the world in step `ends_at`, if that is given.

    `broken`: how many episodes still to come, of all environments together, raise in their third step.
    """

    broken = 0

    def __init__(self, ends_at: int = 0) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.ends_at = ends_at
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.count == 3 and Corridor.broken > 0:
            Corridor.broken -= 1
            raise ValueError("the floor gave way")
        over = action == 2 and self.count == self.ends_at
        return np.zeros(1, np.float32), float(action), over, self.count == 10, {}
