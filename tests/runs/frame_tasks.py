"""A task that is seen as pictures, one of which does not show which way things move: so they are stacked."""

import gymnasium
import numpy as np
from gymnasium.wrappers import FrameStackObservation

SIDE = 6


class Dot(gymnasium.Env):
    """Keep a dot that drifts away from the picture's edges."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.array([SIDE / 2, SIDE / 2])
        self.speed = self.np_random.uniform(-0.3, 0.3, 2)
        return self.seen(), {}

    def step(self, action):
        self.speed[0] += 0.3 * (2 * int(action) - 1)
        self.place += self.speed
        self.place[1] = abs(self.place[1]) % SIDE
        over = not 0 <= self.place[0] < SIDE
        return self.seen(), 1.0, bool(over), False, {}

    def seen(self):
        picture = np.zeros((SIDE, SIDE), np.uint8)
        x, y = np.clip(self.place.astype(int), 0, SIDE - 1)
        picture[x, y] = 255
        return picture


class Repeating(FrameStackObservation):
    def __init__(self, env):
        super().__init__(env, 4)


class Zeros(FrameStackObservation):
    def __init__(self, env):
        super().__init__(env, 4, padding_type="zero")
