"""Own algorithms whose networks do not fit the task."""

import numpy as np
from torch import nn

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.rows import Column


class Wide(Algorithm):
    """A network of seven inputs, whatever the task shows."""

    def build(self):
        self.net = nn.Linear(7, self.spaces.actions)

    def policy(self, obs, acting=None):
        return Categorical(self.net(obs))

    def update(self, batch, clock):
        return {}


class Lazy(Wide):
    """A network whose inputs are not known yet."""

    def build(self):
        self.net = nn.LazyLinear(self.spaces.actions)


class Ignored(Wide):
    """Says a word that is not known."""

    off_policy = "ignored"

    def build(self):
        self.net = nn.Linear(4, self.spaces.actions)


class Columns(Ignored):
    """Has a column whose dtype and shape are in the other order."""

    off_policy = "ignores"

    def build(self):
        super().build()
        self.extra_columns = (Column("partial", (), np.float32),)
