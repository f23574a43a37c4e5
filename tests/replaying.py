"""Algorithms of one's own that replay: what their classes say of the rows to keep."""

from typing import ClassVar

from torch import nn

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import Categorical


class Scores(Algorithm):
    def build(self):
        self.head = nn.Linear(self.spaces.entries, self.spaces.actions)

    def policy(self, obs, acting=None):
        return Categorical(self.head(obs.flatten(1)))

    def update(self, batch, clock):
        return {}


class Replays(Scores):
    memory, off_policy = "replay", "learns"


class Fewer(Replays):
    defaults: ClassVar = {"memory": {"capacity_rows": 5000}}


class Corrects(Scores):
    memory, off_policy = "replay", "corrects"


class Rollouts(Scores):
    off_policy = "learns"
