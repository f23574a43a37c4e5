"""PPO on rollouts (Schulman et al. 2017), as small as it can be: what the interface must give an on-policy learner.

It needs whole rollouts, time-major, each used in one update only, and one publication per update. Values are computed
here and not by the executors, because at lag 0 the learner's weights are the behaviour's.
"""

from typing import ClassVar

import numpy as np
import torch
from pydantic import BaseModel

from mlxe_async.algorithms.interface import Priorities
from mlxe_async.maths import returns
from mlxe_async.networks import Network, NumpyNetwork, TorchNetwork
from mlxe_async.optimisers import FlatOptimiser


class PPOSettings(BaseModel):
    rollout_rows: int = 128
    epochs: int = 4
    minibatches: int = 4
    clip: float = 0.2
    learning_rate: float = 3e-3
    discount: float = 0.9
    lambda_: float = 0.95


def policy_loss(log_prob, behaviour_log_prob, advantage, clip):
    """Clipped surrogate, eq. 7, negated to be minimised. All (M,) -> ()."""
    ratio = (log_prob - behaviour_log_prob).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


class PPO:
    Settings: ClassVar[type[BaseModel]] = PPOSettings
    memory: ClassVar = "rollouts"
    extra_columns = derived_columns = ()
    window = 1
    priorities = Priorities()

    def __init__(self, settings, spaces, *, seed, learns, threads=1, device="cpu"):
        self.settings = settings
        self.batch_rows = settings.rollout_rows
        inputs = int(np.prod(spaces.observation_shape))
        self.shape = Network(inputs, (), {"policy": (16, spaces.actions), "value": (16, 1)})
        self.parameters = self.shape.parameters
        initial = self.shape.initial([seed, 0], {"policy": 0.01})
        self.load(initial)
        if learns:
            self.rng = np.random.default_rng([seed, 1])
            self.set_weights(initial)

    def load(self, flat):
        self.acting = NumpyNetwork(self.shape, flat)

    def act(self, obs, rng, clock):
        scores = self._scores(obs)
        action = (scores + rng.gumbel(size=scores.shape)).argmax(-1)
        return {"action": action, "log_prob": np.take_along_axis(scores, action[:, None], -1)[:, 0]}

    def greedy(self, obs):
        return self._scores(obs).argmax(-1)

    def greedy_many(self, flats, obs):
        return NumpyNetwork(self.shape, flats)(obs, "policy")[0].argmax(-1)

    def behaviour_log_prob(self, obs, action):
        return np.take_along_axis(self._scores(obs), action[:, None], -1)[:, 0]

    def _scores(self, obs):
        logits = self.acting(obs, "policy")[0]
        return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)

    def derive(self, segment):
        return {}

    def updates_due(self, *, rows, new_rows, new_segments):
        return int(rows >= self.batch_rows)

    def update(self, batch, clock):
        s, (length, width) = self.settings, batch["action"].shape
        tensor = {k: torch.as_tensor(np.asarray(v), dtype=torch.float32) for k, v in batch.items()}
        with torch.no_grad():
            value = self.learned(tensor["obs"].reshape(length * width, -1), "value")[0].reshape(length, width).numpy()
            next_value = self.learned(tensor["next_obs"].reshape(length * width, -1), "value")[0]
        valid = batch["valid"].astype(bool)
        last = ~np.concatenate([valid[1:], np.zeros((1, width), bool)])
        terminated = batch["terminated"].astype(bool)
        ends = terminated | batch["truncated"].astype(bool) | last
        advantage = returns.generalised_advantage(
            batch["reward"], value, next_value.reshape(length, width).numpy(), terminated, ends, s.discount, s.lambda_
        )
        rows = {
            "obs": tensor["obs"].reshape(length * width, -1),
            "action": torch.as_tensor(batch["action"].reshape(-1)),
            "log_prob": tensor["log_prob"].reshape(-1),
            "advantage": torch.as_tensor(advantage.reshape(-1), dtype=torch.float32),
            "target": torch.as_tensor((advantage + value).reshape(-1), dtype=torch.float32),
        }
        learnable = np.flatnonzero(valid.reshape(-1))
        for _ in range(s.epochs):
            for chosen in np.array_split(self.rng.permutation(learnable), s.minibatches):
                loss = self.loss({k: v[chosen] for k, v in rows.items()})
                self.learned.gradient.zero_()
                loss.backward()
                self.optimiser.step(self.settings.learning_rate)
        return {"loss": float(loss.detach())}, None

    def loss(self, rows):
        logits, value = self.learned(rows["obs"], "policy", "value")
        log_prob = logits.log_softmax(-1).gather(-1, rows["action"][:, None])[:, 0]
        advantage = (rows["advantage"] - rows["advantage"].mean()) / (rows["advantage"].std() + 1e-8)
        critic = 0.5 * (rows["target"] - value[:, 0]).square().mean()
        return policy_loss(log_prob, rows["log_prob"], advantage, self.settings.clip) + critic

    def weights(self):
        return self.learned.flat.numpy().copy()

    def set_weights(self, flat):
        self.learned = TorchNetwork(self.shape, flat)
        self.optimiser = FlatOptimiser("adam", self.learned.flat, self.learned.gradient, eps=1e-8)
