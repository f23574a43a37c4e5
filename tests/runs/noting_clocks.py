"""The MLxE learner, whose rows say how many steps its executor's clock stood at."""

import numpy as np

from mlxe_async.algorithms.mlxe.paper import MLxE
from mlxe_async.rows import Column


class NotingClocks(MLxE):
    extra_columns = (Column("clock", "<i8"),)

    def act(self, obs, rng, clock):
        return super().act(obs, rng, clock) | {"clock": np.full(len(obs), clock.steps)}
