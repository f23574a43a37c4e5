"""DQN on replay (Mnih et al. 2015) with n-step targets and TD priorities: what the interface must give it.

Exploration has no log-probability of its own making: epsilon is part of the flat vector, so that executors explore as
the version says they should, and stored log-probabilities can be recomputed from the version alone. The target network
and its clock never leave the learner.
"""

from typing import ClassVar

import numpy as np
import torch
from pydantic import BaseModel

from mlxe_async.algorithms.interface import Priorities
from mlxe_async.maths import returns
from mlxe_async.networks import Network, NumpyNetwork, TorchNetwork
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Column


class DQNSettings(BaseModel):
    batch: int = 32
    n_step: int = 3
    discount: float = 0.9
    learning_rate: float = 5e-3
    target_every: int = 20
    epsilon_last: float = 0.05
    epsilon_updates: int = 200


def q_loss(q_tm1, target_t):
    """Squared TD error per row, (M,) -> (M,); the target has no gradient."""
    return 0.5 * (target_t.detach() - q_tm1).square()


class DQN:
    Settings: ClassVar[type[BaseModel]] = DQNSettings
    memory: ClassVar = "replay"
    extra_columns = ()
    window = 1
    priorities = Priorities("td", exponent=0.6, correction=0.4)

    def __init__(self, settings, spaces, *, seed, learns, threads=1, device="cpu"):
        self.settings = settings
        self.batch_rows = settings.batch
        self.derived_columns = (
            *(Column("partial", "<f4"), Column("coefficient", "<f4")),
            Column("cut_obs", spaces.observation_dtype, spaces.observation_shape),
        )
        self.shape = Network(int(np.prod(spaces.observation_shape)), (), {"q": (32, spaces.actions)})
        self.parameters = (*self.shape.parameters, ("exploration.epsilon", (1,)))
        initial = np.append(self.shape.initial([seed, 0]), np.float32(1.0))
        self.load(initial)
        if learns:
            self.set_weights(initial)

    def load(self, flat):
        self.acting, self.epsilon = NumpyNetwork(self.shape, flat[:-1]), float(flat[-1])

    def act(self, obs, rng, clock):
        best = self.greedy(obs)
        explore = rng.random(len(obs)) < self.epsilon
        action = np.where(explore, rng.integers(0, self.shape.heads["q"][-1], len(obs)), best)
        return {"action": action, "log_prob": self.behaviour_log_prob(obs, action)}

    def greedy(self, obs):
        return self.acting(obs, "q")[0].argmax(-1)

    def greedy_many(self, flats, obs):
        return NumpyNetwork(self.shape, flats[:, :-1])(obs, "q")[0].argmax(-1)

    def behaviour_log_prob(self, obs, action):
        share = self.epsilon / self.shape.heads["q"][-1]
        return np.log(share + (1 - self.epsilon) * (action == self.greedy(obs)) + 1e-12).astype(np.float32)

    def derive(self, segment):
        ended = bool(segment["terminated"][-1])
        partial, coefficient, cut = returns.n_step(
            segment["reward"], ended, self.settings.discount, self.settings.n_step
        )
        return {"partial": partial, "coefficient": coefficient, "cut_obs": segment["next_obs"][cut]}

    def updates_due(self, *, rows, new_rows, new_segments):
        return new_rows if rows >= self.batch_rows else 0  # replay ratio: batch_rows rows learned per row that came

    def update(self, batch, clock):
        if clock.updates % self.settings.target_every == 0:
            self.target.flat.copy_(self.learned.flat)
        rows = {
            k: torch.as_tensor(np.asarray(batch[k], np.float32)) for k in ("obs", "cut_obs", "partial", "coefficient")
        }
        action = torch.as_tensor(batch["action"])
        with torch.no_grad():
            bootstrap = self.target(rows["cut_obs"], "q")[0].max(-1).values
            target = rows["partial"] + rows["coefficient"] * bootstrap
        q = self.learned(rows["obs"], "q")[0].gather(-1, action[:, None])[:, 0]
        loss = (q_loss(q, target) * torch.as_tensor(batch["weight"])).mean()
        self.learned.gradient.zero_()
        loss.backward()
        self.optimiser.step(self.settings.learning_rate)
        share = min(1.0, clock.updates / self.settings.epsilon_updates)
        self.published_epsilon = 1.0 + share * (self.settings.epsilon_last - 1.0)
        return {"loss": float(loss.detach())}, (target - q.detach()).abs().numpy() + 0.01

    def weights(self):
        return np.append(self.learned.flat.numpy(), np.float32(self.published_epsilon))

    def set_weights(self, flat):
        self.learned, self.target = TorchNetwork(self.shape, flat[:-1]), TorchNetwork(self.shape, flat[:-1])
        self.optimiser = FlatOptimiser("adam", self.learned.flat, self.learned.gradient, eps=1e-8)
        self.published_epsilon = float(flat[-1])
