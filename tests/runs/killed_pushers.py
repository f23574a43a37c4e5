"""Algorithms whose worker, or learner, dies at a certain moment of a push, in each of three lives.

`killed_pushers:a2c_worker_writing` dies in the second executor while it writes a push.
"""

from killed_learners import MOMENTS, after, before
from killed_workers import PROCESSES, killed

from mlxe_async.algorithms import load_algorithm
from mlxe_async.ipc.shared.pushes import PushPlaces

PUSHING = {
    "recorded": lambda: setattr(PushPlaces, "write", before(PushPlaces.write)),
    "writing": lambda: setattr(PushPlaces, "_checksum", before(PushPlaces._checksum)),
    "written": lambda: setattr(PushPlaces, "write", after(PushPlaces.write)),
    "read": lambda: setattr(PushPlaces, "read", after(PushPlaces.read)),
    **MOMENTS,
}


for _name in ("a2c", "impala", "ppo", "reinforce", "dqn"):
    for _who in PROCESSES:
        for _moment in ("updating", "updated", *PUSHING):
            globals()[f"{_name}_{_who}_{_moment}"] = killed(load_algorithm(_name), _who, _moment, PUSHING)
