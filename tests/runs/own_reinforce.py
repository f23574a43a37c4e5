"""REINFORCE (Williams 1992): whole episodes, the return that followed each action, nothing else."""

from collections import deque
from typing import ClassVar

import torch
from pydantic import BaseModel, Field
from torch import nn

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import Categorical


class REINFORCESettings(BaseModel):
    discount: float = Field(0.99, ge=0, le=1)
    learning_rate: float = Field(1e-2, gt=0)
    rows_per_update: int = Field(500, ge=0, description="Rows of whole episodes that are learned from together.")


class REINFORCE(Algorithm):
    Settings = REINFORCESettings
    bootstraps = False
    defaults: ClassVar = {"schedule": {"sync": "episode"}}

    def build(self):
        (inputs,) = self.spaces.observation_shape
        self.network = nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, self.spaces.actions))

    def build_learner(self):
        self.optimiser = torch.optim.Adam(self.network.parameters(), self.settings.learning_rate)

    def policy(self, obs, acting=None):
        return Categorical(self.network(obs))

    def update(self, batch, clock):
        rows = self.tensors(batch)
        valid, after = rows["valid"], torch.zeros(rows["reward"].shape[1])
        returns = torch.zeros_like(rows["reward"])
        for step in reversed(range(len(returns))):
            ends = (rows["terminated"][step] | rows["truncated"][step]).bool()
            after = rows["reward"][step] + self.settings.discount * after.masked_fill(ends | ~valid[step], 0.0)
            returns[step] = after
        returns = returns[valid]
        policy = self.policy(rows["obs"][valid])
        loss = -(policy.log_prob(rows["action"][valid]) * (returns - returns.mean()) / (returns.std() + 1e-8)).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return {"loss": loss, "entropy": policy.entropy().mean(), "mean_return": returns.mean()}


class Remembers(REINFORCE):
    """Keeps something that no state can hold."""

    def build_learner(self):
        super().build_learner()
        self.history = deque()
