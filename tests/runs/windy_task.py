"""A task of a user's own with all the help a task can offer; nothing of it is imported from the package."""

from typing import ClassVar

import gymnasium
import numpy as np


class Help:
    symmetry: ClassVar = {"observation_sign": [-1, -1, 1], "action_order": [2, 1, 0]}
    limits = (1.0, None)

    def features(self, obs):
        return obs[:, :1] ** 2

    def shaped_reward(self, obs, action, next_obs, reward, terminated):
        return np.where(terminated, -5.0, reward + abs(obs[:, 0]) - abs(next_obs[:, 0]))

    def adverse_start(self, env, finished_episodes):
        inner = env.unwrapped
        if inner.np_random.random() < 1 / (1 + finished_episodes):
            inner.state = np.array([inner.np_random.choice([-0.9, 0.9]), 0.0], np.float32)
            return inner.state.copy()
        return None


class Windy(gymnasium.Env):
    """Stay between -1 and 1 in the wind: push to the left, not at all, or to the right."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    mlxe_help = Help()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.05, 0.05, 2).astype(np.float32)
        return self.state.copy(), {}

    def step(self, action):
        place, speed = self.state
        speed = 0.9 * speed + 0.05 * (int(action) - 1) + 0.05 * self.np_random.standard_normal()
        self.state = np.array([place + speed, speed], np.float32)
        return self.state.copy(), 1.0, bool(abs(self.state[0]) > 1), False, {}
