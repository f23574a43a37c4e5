"""A task that is learned in some hundred steps: bring a point to the middle by moving it, or by one of three moves."""

import gymnasium
import numpy as np


class Reach(gymnasium.Env):
    """Its return is minus the sum of distances; an episode is cut after 15 steps and never ends by itself."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.uniform(-2, 2), 0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        return self.moved(float(action[0]) / 2)

    def moved(self, way):
        self.place, self.steps = float(np.clip(self.place + way, -10, 10)), self.steps + 1
        return np.array([self.place], np.float32), -abs(self.place), False, self.steps == 15, {}


class ReachByMoves(Reach):
    """The same with a move to the left, none, and one to the right."""

    action_space = gymnasium.spaces.Discrete(3)

    def step(self, action):
        return self.moved((int(action) - 1) / 2)
