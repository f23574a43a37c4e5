"""Episodes of 400 steps whose observations are the steps' numbers, and a learner that tells which it was shown."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from torch import nn

from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Algorithm

STEPS = 400


class Numbered(gymnasium.Env):
    """Each step is worth 1; only a limit ends an episode."""

    observation_space = gymnasium.spaces.Box(0, 1e6, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._steps += 1
        return np.full(1, self._steps, np.float32), 1.0, False, False, {}


class Shown(Algorithm):
    """Acts at random, and learns nothing from 2,000 rows at a time."""

    memory, off_policy = "replay", "learns"
    batch_rows = 5 * STEPS

    def build(self):
        self.network = nn.Linear(1, 2)

    def policy(self, obs, acting):
        return Categorical(0 * self.network(obs))

    def updates_due(self, *, rows, new_rows, new_segments):
        return 1

    def update(self, rows, clock):
        with torch.no_grad():
            self.network.bias.add_(1.0)
        return {"numbers": float(len(np.unique(np.asarray(rows["obs"]))))}
