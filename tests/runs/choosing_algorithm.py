"""An algorithm of a user's own that takes actions of any kind of choice, and only allowed ones; it learns nothing."""

import numpy as np
from pydantic import BaseModel

from mlxe_async.algorithms import Priorities


class NoSettings(BaseModel):
    batch: int = 16


class Choosing:
    Settings = NoSettings
    memory = "rollouts"
    off_policy = "learns"
    extra_columns = derived_columns = ()
    window = 1
    priorities = Priorities()
    parameters = (("weight", (1,)),)

    def __init__(self, settings, spaces, *, seed, learns, threads=1, device="cpu"):
        self.spaces, self.batch_rows = spaces, settings.batch
        self.sizes = np.array(spaces.action_sizes)

    def load(self, flat):
        pass

    def act(self, obs, rng, clock):
        preference = np.where(self.allowed(obs), rng.random((len(obs), self.sizes.sum())), -1)
        return {"action": self.chosen(preference), "log_prob": np.zeros(len(obs), np.float32)}

    def greedy(self, obs):
        return self.chosen(self.allowed(obs))

    def greedy_many(self, flats, obs):
        return np.stack([self.greedy(some) for some in obs])

    def behaviour_log_prob(self, obs, action):
        return np.zeros(len(obs), np.float32)

    def derive(self, segment):
        return {}

    def updates_due(self, *, rows, new_rows, new_segments):
        return int(rows > 0)

    def update(self, batch, clock):
        """Every action that was taken was allowed by the observation before it."""
        lead = batch["action"].shape[: batch["action"].ndim - len(self.spaces.action_shape)]
        actions = batch["action"].reshape(*lead, -1)
        taken = np.take_along_axis(self.allowed(batch["obs"]), actions + self.starts(), -1)
        if not taken[batch["valid"].astype(bool)].all():
            raise ValueError("an action was taken that was not allowed")
        return {"entropy": float(self.allowed(batch["next_obs"]).mean())}, None

    def weights(self):
        return np.zeros(1, np.float32)

    def set_weights(self, flat):
        pass

    def starts(self):
        return np.cumsum(self.sizes) - self.sizes

    def allowed(self, obs):
        found = self.spaces.mask(obs)
        lead = obs.shape[: obs.ndim - len(self.spaces.observation_shape)]
        return np.ones((*lead, self.sizes.sum()), bool) if found is None else found

    def chosen(self, preference):
        pieces = np.split(preference, self.starts()[1:], axis=-1)
        best = np.stack([piece.argmax(-1) for piece in pieces], -1)
        return best.reshape(*best.shape[:-1], *self.spaces.action_shape)
