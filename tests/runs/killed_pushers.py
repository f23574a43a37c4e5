"""Algorithms whose worker, or learner, dies at a certain moment of a push, in each of three lives.

`killed_pushers:a2c_worker_writing` dies in the second executor while it writes a push.
"""

import os

from killed_learners import KINDS, LIVES, MOMENTS, after, before, die, life

from mlxe_async.ipc.shared.pushes import PushSlot

PROCESSES = {"learner": "mlxe-lrn", "worker": "mlxe-exe-1"}
PUSHING = {
    "recorded": lambda: setattr(PushSlot, "write", before(PushSlot.write)),
    "writing": lambda: setattr(PushSlot, "_checksum", before(PushSlot._checksum)),
    "written": lambda: setattr(PushSlot, "write", after(PushSlot.write)),
    "read": lambda: setattr(PushSlot, "read", after(PushSlot.read)),
    **MOMENTS,
}


def killed(base, who, moment):
    class Killed(base):
        def update(self, batch, clock):
            is_mine = PROCESSES[who] in os.environ["MLXE_ROLE"]
            due = is_mine and life() <= LIVES and clock.updates >= life() + 1
            if due and moment == "updating":
                die()
            if due and not self.armed and moment in PUSHING:
                type(self).armed = True  # of the class: an object's attributes are kept
                PUSHING[moment]()
            answer = super().update(batch, clock)
            if due and moment == "updated":
                die()
            return answer

        armed = False

    return Killed


for _name in ("a2c", "impala", "ppo", "reinforce"):
    _base = KINDS.get(_name)
    if _base is None:
        from mlxe_async.algorithms import load_algorithm

        _base = load_algorithm(_name)
    globals()[f"{_name}_never"] = _base
    for _who in PROCESSES:
        for _moment in ("updating", "updated", *PUSHING):
            globals()[f"{_name}_{_who}_{_moment}"] = killed(_base, _who, _moment)
