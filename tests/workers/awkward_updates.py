"""Algorithms that can be made and act, and whose first update goes wrong."""

import gymnasium
import numpy as np
from gymnasium import spaces

from mlxe_async.algorithms.mlxe.paper import MLxE
from mlxe_async.algorithms.ppo import PPO


class Raises(MLxE):
    def update(self, batch, clock):
        raise ValueError("the loss has a wrong shape")  # line 13


class RaisesOnRollouts(PPO):
    def update(self, batch, clock):
        return super().update({name: column[:, :0] for name, column in batch.items()}, clock)  # line 18


class LearnsFromNaN(PPO):
    def update(self, batch, clock):
        return {**super().update(batch, clock), "policy_loss": float("nan")}


class DerivesNothing(MLxE):
    def derive(self, segment):
        return {}


class ReturnsNothing(MLxE):
    def update(self, batch, clock):
        super().update(batch, clock)


class MeasuresWords(MLxE):
    def update(self, batch, clock):
        return {**super().update(batch, clock), "mood": "good"}


class Unrepeatable(MLxE):
    def update(self, batch, clock):
        flat = self.optimiser.weights
        flat.put_(flat.new_zeros(1).long(), flat.new_ones(1))
        return super().update(batch, clock)


class Shrinks(MLxE):
    def weights(self):
        return super().weights()[:-1] if self.updated else super().weights()

    updated = False

    def update(self, batch, clock):
        self.updated = True
        return super().update(batch, clock)


class Learns(MLxE):
    seen = moments = None

    def update(self, batch, clock):
        Learns.seen = {name: column.copy() for name, column in batch.items()}
        return super().update(batch, clock)


class Normalises(MLxE):
    moments = None
    moment_entries = 4

    def set_moments(self, moments):
        Normalises.moments = moments


class FollowsTheTask(MLxE):
    asked = None

    @classmethod
    def defaults_for(cls, spaces, written):
        cls.asked = dict(written)
        return {"batch": 11 * spaces.observation_shape[0], "learning_rate": 0.1}


class Sees(gymnasium.Env):
    """A picture in a Dict within a Dict, beside integers and numbers; actions are discrete, or a number within bounds.

    Args:
        bounded: whether an action is a number.
    """

    def __init__(self, bounded=False):
        head = spaces.Dict({"eye": spaces.Box(0, 255, (40, 48, 3), np.uint8), "lamp": spaces.Discrete(3, start=1)})
        self.observation_space = spaces.Dict({"head": head, "arm": spaces.Tuple((spaces.Box(-1, 1, (2,)),))})
        self.action_space = spaces.Box(-1, 1, (1,)) if bounded else spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


class Coloured(gymnasium.Env):
    """Pictures with their colours in the last axis."""

    observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (40, 48, 3), dtype=np.uint8), {}

    def step(self, action):
        return self.np_random.integers(0, 256, (40, 48, 3), dtype=np.uint8), 1.0, False, False, {}


class CountsByOldWords(MLxE):
    def updates_due(self, rows, new):
        return new


class OwesLess(MLxE):
    def updates_due(self, *, rows, new_rows, new_segments):
        return -1


class OwesNothingSaid(MLxE):
    def updates_due(self, *, rows, new_rows, new_segments):
        pass
