"""CartPole whose velocities are not shown: what it does next cannot be seen in one observation."""

import gymnasium
import numpy as np
from gymnasium import spaces


class PositionsOnly(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        box = env.observation_space
        self.observation_space = spaces.Box(box.low[[0, 2]], box.high[[0, 2]], dtype=np.float32)

    def observation(self, observation):
        return observation[[0, 2]]
