"""Tasks that differ only in what they show: a vector, a picture, a dictionary, integers; a lamp says what is right."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

LAMPS = 3
KINDS = ("vector", "picture", "dictionary", "integers")


class Shown(gymnasium.Env):
    """One of three lamps is on, and to name it is worth 1. With `steps` an episode has so many.

    Args:
        shows: one of `KINDS`.
        moves: `"discrete"`: the lamp's number; `"box"`: a number from -1 to 1, of which each third is a lamp.
        steps: length of an episode; 0: it never ends by itself.
        side: height and width of a picture.
    """

    def __init__(self, *, shows: str = "vector", moves: str = "discrete", steps: int = 20, side: int = 64) -> None:
        self._shows, self._moves, self._steps, self._side = shows, moves, steps, side
        self.observation_space = {
            "vector": spaces.Box(-1, 1, (LAMPS,), np.float32),
            "picture": spaces.Box(0, 255, (3, side, side), np.uint8),
            "dictionary": spaces.Dict({"lamp": spaces.Discrete(LAMPS), "noise": spaces.Box(-1, 1, (2,), np.float32)}),
            "integers": spaces.Discrete(LAMPS),
        }[shows]
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if moves == "box" else spaces.Discrete(LAMPS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._look(), {}

    def step(self, action):
        named = int((float(action[0]) + 1) * LAMPS / 2.001) if self._moves == "box" else int(action)
        reward = float(named == self._lamp)
        self._count += 1
        return self._look(), reward, self._count == self._steps, False, {}

    def _look(self):
        self._lamp = int(self.np_random.integers(LAMPS))
        if self._shows == "integers":
            return self._lamp
        if self._shows == "dictionary":
            return {"lamp": self._lamp, "noise": self.np_random.uniform(-1, 1, 2).astype(np.float32)}
        if self._shows == "vector":
            return np.eye(LAMPS, dtype=np.float32)[self._lamp]
        picture = np.zeros(self.observation_space.shape, np.uint8)
        picture[self._lamp] = 255
        return picture
