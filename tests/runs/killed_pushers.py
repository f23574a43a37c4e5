"""Algorithms whose worker, or learner, dies at a certain moment of a push, in each of three lives.

`killed_pushers:a2c_worker_writing` dies in the second executor while it writes a push.
"""

from killed_learners import MOMENTS, after, before
from killed_workers import PROCESSES, killed

from mlxe_async.algorithms import load_algorithm
from mlxe_async.ipc.shared.pushes import PushSlot

PUSHING = {
    "recorded": lambda: setattr(PushSlot, "write", before(PushSlot.write)),
    "writing": lambda: setattr(PushSlot, "_checksum", before(PushSlot._checksum)),
    "written": lambda: setattr(PushSlot, "write", after(PushSlot.write)),
    "read": lambda: setattr(PushSlot, "read", after(PushSlot.read)),
    **MOMENTS,
}


for _name in ("a2c", "impala", "ppo", "reinforce"):
    for _who in PROCESSES:
        for _moment in ("updating", "updated", *PUSHING):
            globals()[f"{_name}_{_who}_{_moment}"] = killed(load_algorithm(_name), _who, _moment, PUSHING)
