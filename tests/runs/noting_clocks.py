"""The A3C learner, whose rows say how many steps its executor's clock stood at."""

import numpy as np

from mlxe_async.algorithms.a3c import A3C
from mlxe_async.rows import Column


class NotingClocks(A3C):
    extra_columns = (Column("clock", "<i8"),)

    def act(self, obs, rng, clock):
        return super().act(obs, rng, clock) | {"clock": np.full(len(obs), clock.steps)}
