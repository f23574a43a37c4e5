"""An algorithm on rollouts that learns nothing and notes how old what it is given is."""

import time

import numpy as np
from pydantic import BaseModel, ConfigDict

from mlxe_async.algorithms.interface import Priorities


class FakeSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    update_seconds: float = 0.0


class Fake:
    Settings = FakeSettings
    memory = "rollouts"
    extra_columns = ()
    derived_columns = ()
    window = 1
    batch_rows = 8
    priorities = Priorities()
    parameters = (("w", (4,)),)

    def __init__(self, settings, spaces, *, seed, learns, threads=1, device="cpu"):
        self.settings = settings
        self._flat = np.zeros(4, dtype=np.float32)

    def load(self, flat):
        self._flat = np.array(flat)

    def act(self, obs, rng, clock):
        action = rng.integers(0, 2, len(obs))
        return {"action": action, "log_prob": np.full(len(obs), np.log(0.5))}

    def greedy(self, obs):
        return np.zeros(len(obs), dtype=np.int64)

    def greedy_many(self, flats, obs):
        return np.zeros(obs.shape[:2], dtype=np.int64)

    def behaviour_log_prob(self, obs, action):
        return np.full(len(obs), np.log(0.5))

    def derive(self, segment):
        return {}

    def updates_due(self, *, rows, new_rows, new_segments):
        return 0

    def update(self, batch, clock):
        oldest = int(batch["version"][batch["valid"]].min())
        assert (batch["version"][batch["valid"]] > 0).all()
        if self.settings.update_seconds:
            time.sleep(self.settings.update_seconds)
        self._flat = self._flat + 1
        return {"lag": float(clock.version - oldest), "rows": float(batch["valid"].sum())}, None

    def weights(self):
        return self._flat.copy()

    def set_weights(self, flat):
        self._flat = np.array(flat)
