"""A learner of `CountingEnv` that tells how many different steps of an episode it was shown."""

import numpy as np
import torch
from torch import nn

from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.interface import Algorithm
from mlxe_async.testing.counting import PIECES, Place

STEP = Place._fields.index("step")


class Shown(Algorithm):
    """Acts at random, and learns nothing from 2,000 rows at a time."""

    memory, off_policy = "replay", "learns"
    batch_rows = 2000

    def build(self):
        self.network = nn.Linear(PIECES, 2)

    def policy(self, obs, acting):
        return Categorical(0 * self.network(obs))

    def updates_due(self, *, rows, new_rows, new_segments):
        return 1

    def update(self, rows, clock):
        with torch.no_grad():
            self.network.bias.add_(1.0)
        return {"steps": float(len(np.unique(np.asarray(rows["obs"])[:, STEP])))}
