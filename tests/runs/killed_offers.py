"""Algorithms whose learner dies at a certain moment while it takes over a network, in each of three lives.

`killed_offers:a2c_published` dies when a network that it took over is published.
"""

import os

from killed_learners import LIVES, MOMENTS, after, life

from mlxe_async.algorithms.a2c import A2C
from mlxe_async.ipc.shared.pushes import PushPlaces

OFFERED = {"read": lambda: setattr(PushPlaces, "read", after(PushPlaces.read)), **MOMENTS}


def killed(moment):
    class Killed(A2C):
        def set_weights(self, flat):
            super().set_weights(flat)
            type(self).taken += 1  # of the class: an object's attributes are kept
            # A network that is offered again comes first: the next life must come further, but for what was published.
            due = 1 if moment == "published" else life()
            if "mlxe-lrn" in os.environ["MLXE_ROLE"] and life() <= LIVES and self.taken == due:
                OFFERED[moment]()

        taken = 0

    return Killed


for _moment in ("read", "keeping", "kept", "publishing", "published"):
    globals()[f"a2c_{_moment}"] = killed(_moment)
