"""Soft actor-critic (Haarnoja et al. 2018) on plain torch modules."""

import copy
from typing import ClassVar

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch.nn.functional import mse_loss

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import TanhGaussian, to_unit


class SACSettings(BaseModel):
    discount: float = Field(0.99, ge=0, le=1)
    layers: tuple[int, ...] = (64, 64)
    batch: int = Field(128, ge=1)
    start_rows: int = Field(500, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    follow: float = Field(0.005, gt=0, le=1, description="Share of the way that targets go in each update.")


def dense(inputs, sizes, outputs):
    """Layers with ReLU between them."""
    widths = (inputs, *sizes)
    pairs = zip(widths, sizes, strict=False)
    layers = [layer for fan_in, fan_out in pairs for layer in (nn.Linear(fan_in, fan_out), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class SAC(Algorithm):
    Settings = SACSettings
    memory, off_policy = "replay", "learns"
    defaults: ClassVar = {"schedule": {"sync": "rollout", "rollout_steps": 32, "updates_per_publish": 32}}

    def build(self):
        (self.inputs,), (self.outputs,) = self.spaces.observation_shape, self.spaces.action_shape
        self.actor = dense(self.inputs, self.settings.layers, 2 * self.outputs)

    def build_learner(self):
        s = self.settings
        both = [dense(self.inputs + self.outputs, s.layers, 1) for _ in range(2)]
        self.critics, self.targets = nn.ModuleList(both), nn.ModuleList(copy.deepcopy(both))
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), s.learning_rate)
        self.critic_optimiser = torch.optim.Adam(self.critics.parameters(), s.learning_rate)
        self.alpha_optimiser = torch.optim.Adam([self.log_alpha], s.learning_rate)

    def policy(self, obs, acting=None):
        mean, log_std = self.actor(obs).chunk(2, -1)
        return TanhGaussian(mean, log_std.clamp(-5, 2), self.spaces)

    def updates_due(self, *, rows, new_rows, new_segments):
        return new_rows if rows >= self.settings.start_rows else 0

    def update(self, batch, clock):
        s, rows, alpha = self.settings, self.tensors(batch), self.log_alpha.detach().exp()
        action = to_unit(rows["action"], self.spaces)
        with torch.no_grad():
            after, log_prob = self.policy(rows["next_obs"]).rsample()
            value = self.judged(self.targets, rows["next_obs"], after).min(0).values - alpha * log_prob
            target = rows["reward"] + s.discount * (1 - rows["terminated"].float()) * value
        critic_loss = sum(mse_loss(q, target) for q in self.judged(self.critics, rows["obs"], action))
        self.critic_optimiser.zero_grad()
        critic_loss.backward()
        self.critic_optimiser.step()

        chosen, log_prob = self.policy(rows["obs"]).rsample()
        actor_loss = (alpha * log_prob - self.judged(self.critics, rows["obs"], chosen).min(0).values).mean()
        self.actor_optimiser.zero_grad()
        actor_loss.backward()
        self.actor_optimiser.step()

        alpha_loss = -(self.log_alpha.exp() * (log_prob.detach() - self.outputs)).mean()
        self.alpha_optimiser.zero_grad()
        alpha_loss.backward()
        self.alpha_optimiser.step()

        with torch.no_grad():
            for slow, fast in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, s.follow)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "alpha": alpha, "entropy": -log_prob.mean()}

    def judged(self, critics, obs, action):
        """Both critics' values (2, M)."""
        return torch.stack([critic(torch.cat([obs, action], -1))[:, 0] for critic in critics])
