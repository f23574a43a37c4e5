"""Algorithms whose `update` goes wrong."""

import math
import os
import signal

import numpy as np

from mlxe_async.algorithms.mlxe.paper import MLxE
from mlxe_async.ipc.shared.weights import WeightsWriter


class RaisesAlways(MLxE):
    def update(self, batch, clock):
        raise ValueError("the loss has a wrong shape")


class RaisesInItsFirstLife(MLxE):
    def update(self, batch, clock):
        if clock.updates >= 8 and os.environ["MLXE_ROLE"].endswith(":1"):
            raise ValueError("the device was lost")
        return super().update(batch, clock)


class DiesOncePublished(MLxE):
    """Its process is killed between a publication and the answer that tells of it."""

    def update(self, batch, clock):
        if clock.updates >= 8 and os.environ["MLXE_ROLE"].endswith(":1"):
            WeightsWriter.publish = publish_and_die
        return super().update(batch, clock)


def publish_and_die(writer, vector, publish=WeightsWriter.publish):
    publish(writer, vector)
    os.kill(os.getpid(), signal.SIGKILL)


class MeasuresNothing(MLxE):
    def update(self, batch, clock):
        return super().update(batch, clock) | {"surprise": math.nan}


class Diverges(MLxE):
    def weights(self):
        flat = super().weights()
        return np.full_like(flat, np.nan) if self.updates else flat

    updates = 0

    def update(self, batch, clock):
        self.updates += 1
        return super().update(batch, clock)


class DiesInEachUpdate(MLxE):
    def update(self, batch, clock):
        os.kill(os.getpid(), signal.SIGKILL)


class DiesInTheLearner(DiesInEachUpdate):
    def update(self, batch, clock):
        if "mlxe-probe" not in os.environ["MLXE_ROLE"]:  # which does one on made-up rows
            return super().update(batch, clock)
        return {}


class DropsAll(MLxE):
    def updates_due(self, *, rows, new_rows, new_segments):
        return 0


class ActsWithManyWords(MLxE):
    def act(self, obs, rng, acting):
        if acting.steps < 3:  # the probe acts once
            return super().act(obs, rng, acting)
        raise ValueError("the first line of it" + "\nand another one" * 60)
