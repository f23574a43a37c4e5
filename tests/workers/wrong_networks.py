"""Own algorithms whose networks do not fit the task."""

from torch import nn

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import Categorical


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
