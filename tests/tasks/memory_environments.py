"""Tiny tasks that cannot be solved without memory: a T-maze (Bakker 2002), and bsuite's memory length, much alike."""

import gymnasium
import numpy as np
from gymnasium import spaces


class TMaze(gymnasium.Env):
    """A corridor whose first cell says which way to turn at its end: return 1 if that was done, else 0.

    Args:
        length: cells of the corridor.
    """

    def __init__(self, length=20):
        self.length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.side = 0, int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action):
        """All steps lead on; at the junction the action is the turn."""
        if self.place == self.length - 1:
            return self._seen(), float(action == self.side), True, False, {}
        self.place += 1
        return self._seen(), 0.0, False, False, {}

    def _seen(self):
        sign = (2 * self.side - 1) if self.place == 0 else 0
        return np.array([sign, self.place == self.length - 1, 1], np.float32)


class MemoryLength(TMaze):
    """As the T-maze, with noise beside the sign, and 1 or -1 at the end: without memory the mean is 0."""

    def step(self, action):
        """The last step is the answer."""
        obs, reward, ended, truncated, info = super().step(action)
        return obs, (2 * reward - 1 if ended else 0.0), ended, truncated, info

    def _seen(self):
        seen = super()._seen()
        seen[2] = self.np_random.choice((-1.0, 1.0))
        return seen


gymnasium.register("TMaze-v0", TMaze)
gymnasium.register("MemoryLength-v0", MemoryLength)
