"""Own algorithms whose pushes are odd."""

import os
import time

import numpy as np

from mlxe_async.algorithms.a2c import A2C


class CountingAlone(A2C):
    """Changes what steps it takes by its own rows alone."""

    def build_learner(self):
        super().build_learner()
        self.counted = 0.0

    def update(self, batch, clock):
        self.counted += float(batch["valid"].sum())
        return super().update(batch, clock)


class NeverFinite(A2C):
    """From the seventh update on, its losses are no numbers."""

    def update(self, batch, clock):
        found = super().update(batch, clock)
        return found | {"policy_loss": float("nan")} if clock.updates >= 7 else found


class Raising(A2C):
    """Its fifth update raises."""

    def update(self, batch, clock):
        if clock.updates == 5:
            raise RuntimeError("the fifth one")
        return super().update(batch, clock)


class WithoutGradients(A2C):
    """Learns nothing."""

    def update(self, batch, clock):
        return {"loss": 0.0}


class Uneven(A2C):
    """Takes now and then a step more."""

    def update(self, batch, clock):
        if np.random.random() < 0.3:
            super().update(batch, clock)
        return super().update(batch, clock)


class SlowLearner(A2C):
    """The learner takes its time over each step; workers do not."""

    def update(self, batch, clock):
        if "mlxe-lrn" in os.environ["MLXE_ROLE"]:
            time.sleep(0.1)
        return super().update(batch, clock)


class NowAndThenFarOff(A2C):
    """Some of its losses are a thousand times as large."""

    def update(self, batch, clock):
        found = super().update(batch, clock)
        return found | {"policy_loss": 1000.0} if self.rng.random() < 0.02 else found
