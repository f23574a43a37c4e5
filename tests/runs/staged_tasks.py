"""Tasks of stages, levels and items: each notes in a file how its episodes began."""

import json
import os

import gymnasium
import numpy as np


class Rows(gymnasium.Env):
    """Episodes of 2 to 1 + size steps, drawn by the seed; the reward is the action. The size is seen.

    Args:
        size: what stages change.
        note: a file that is told of each reset.
        shape: of observations.
    """

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=4, note="", shape=2):
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (shape,), np.float32)
        self._size, self._note = size, note

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._length = 0, int(self.np_random.integers(2, 2 + self._size))
        if self._note:
            told = {"pid": os.getpid(), "seed": seed, "size": self._size, "options": options}
            with open(self._note, "a") as file:  # noqa: PTH123 - appended to by several processes
                file.write(json.dumps(told) + "\n")
        return self._seen(), {}

    def step(self, action):
        self._steps += 1
        return self._seen(), float(action), self._steps >= self._length, False, {}

    def _seen(self):
        seen = np.zeros(self.observation_space.shape, np.float32)
        seen[:2] = self._size / 20, self._steps / 40
        return seen


class Needing(Rows):
    """Cannot be reset without an item."""

    def reset(self, *, seed=None, options=None):
        if options is None:
            raise ValueError("a level is needed")
        return super().reset(seed=seed, options=options)


class Halved(gymnasium.RewardWrapper):
    """Rewards, a part of them."""

    def __init__(self, env, part=0.5):
        super().__init__(env)
        self._part = part

    def reward(self, reward):
        return self._part * reward


gymnasium.register("Rows-v0", entry_point=Rows)
gymnasium.register("Needing-v0", entry_point=Needing)
