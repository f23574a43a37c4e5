"""A visitor of web sites: a slow task with 2,047 actions that blocks who asks too often, and its actor-critic.

The agent is the one of a published study of several workers that share a network by the best score: single layers of
24 for each row of what is seen, then one layer for all actions, and one for the value.
"""

import time

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, Field
from torch import nn

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import Categorical

MEASURES, PROXY, WAIT = 11, 9, 10
HOTTEST, CLUES, VALUES = 11, 9, 12


class Sites(gymnasium.Env):
    """Sites are asked one after the other, each after any of eleven measures; at least one is taken.

    Action a takes the measures whose bits are set in a + 1. A site lets in who takes the measure that it is known for;
    all of them grow hotter with each request, and block when they are hot, until one waits (measure 10).
    Measure 9 is a proxy far away, which costs most. What is seen are nine clues, each one of twelve values.

    Args:
        seconds: that a site takes to answer.
        asked: sites of an episode.
    """

    action_space = spaces.Discrete(2**MEASURES - 1)
    observation_space = spaces.Box(0.0, 1.0, (CLUES, VALUES), np.float32)

    def __init__(self, seconds=0.002, asked=20):
        self.seconds, self.asked = seconds, asked

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kind, self.heat, self.number, self.answers = int(self.np_random.integers(9)), 0, 0, []
        return self._seen(), {}

    def step(self, action):
        time.sleep(self.seconds)
        taken = [one for one in range(MEASURES) if (int(action) + 1) >> one & 1]
        self.heat = 0 if WAIT in taken else min(self.heat + 1, HOTTEST)
        is_in = self.kind in taken and self.heat < 6
        useless = sum(one not in (self.kind, WAIT) for one in taken)
        cost = 0.1 * useless + 0.05 * len(taken) * (len(taken) > 1) + 1.5 * (PROXY in taken)
        self.answers, self.number = [*self.answers, is_in], self.number + 1
        self.kind = int(self.np_random.integers(9))
        reward = (2.0 if is_in else -3.0) - cost
        return self._seen(), reward, self.number >= self.asked, False, {"metrics": {"blocked": float(not is_in)}}

    def _seen(self):
        last = [2 if one else 1 for one in self.answers[:-7:-1]]
        values = [self.kind, self.heat, *last, *[0] * (6 - len(last)), min(self.number // 2, VALUES - 1)]
        seen = np.zeros((CLUES, VALUES), np.float32)
        seen[np.arange(CLUES), values] = 1
        return seen


class VisitorSettings(BaseModel):
    """The keys of [algorithm]."""

    discount: float = Field(0.99, ge=0, le=1)
    entropy: float = Field(0.01, ge=0)
    steps: int = Field(10, ge=1, description="Rows of an episode that are learned from together.")
    learning_rate: float = Field(1e-4, gt=0)


class ByRow(nn.Sequential):
    """A layer for each row of what is seen (..., 9, 12), the same for all of them, then one of all outputs."""

    def __init__(self, rows, values, outputs, width=24):
        super().__init__(nn.Linear(values, width), nn.ReLU(), nn.Flatten(-2), nn.Linear(rows * width, outputs))


class Visitor(Algorithm):
    """n-step actor-critic (Mnih et al. 2016), with a network for the actions and one for the value."""

    Settings = VisitorSettings

    def build(self):
        rows, values = self.spaces.observation_shape
        self.actor, self.critic = ByRow(rows, values, self.spaces.actions), ByRow(rows, values, 1)

    def build_learner(self):
        weights = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(weights, self.settings.learning_rate)

    def policy(self, obs, acting=None):
        return Categorical(self.actor(obs))

    def update(self, batch, clock):
        rows = self.tensors({name: column[batch["valid"]] for name, column in batch.items()})
        for start in range(0, len(rows["reward"]), self.settings.steps):
            piece = {name: column[start : start + self.settings.steps] for name, column in rows.items()}
            target = self.returns(piece)
            policy, value = self.policy(piece["obs"]), self.critic(piece["obs"])[:, 0]
            actor = -(policy.log_prob(piece["action"]) * (target - value.detach())).mean()
            critic, entropy = 0.5 * (target - value).square().mean(), policy.entropy().mean()
            self.optimiser.zero_grad()
            (actor + critic - self.settings.entropy * entropy).backward()
            self.optimiser.step()
        return {"policy_loss": actor, "value_loss": critic, "entropy": entropy}

    @torch.no_grad()
    def returns(self, piece):
        """The discounted rewards from each row on, and behind the last one, where the episode goes on, its value."""
        ended = piece["terminated"].bool()
        after, found = self.critic(piece["next_obs"][-1:])[0, 0], []
        for reward, is_over in zip(piece["reward"].flip(0), ended.flip(0), strict=True):
            after = reward + self.settings.discount * after * ~is_over
            found.append(after)
        return torch.stack(found[::-1]).float()


gymnasium.register("Sites-v0", entry_point=Sites)
