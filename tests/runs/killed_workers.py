"""Algorithms of which one process is killed at a chosen moment while several learn together.

`killed_workers:ppo_worker_giving` dies in the second executor before it gives to an exchange, in each of three lives.
"""

import os

from killed_learners import KINDS, LIVES, MOMENTS, after, before, die, life

from mlxe_async.ipc.shared.meeting import Meeting


def after_gathering(give):
    def killed(*args):
        return after(give(*args))

    return killed


PROCESSES = {"learner": "mlxe-lrn", "worker": "mlxe-exe-1"}
TOGETHER = {
    "giving": lambda: setattr(Meeting, "give", before(Meeting.give)),
    "given": lambda: setattr(Meeting, "_await", before(Meeting._await)),
    "taken": lambda: setattr(Meeting, "give", after_gathering(Meeting.give)),
    **MOMENTS,
}


def killed(base, who, moment, moments=TOGETHER):
    """The class of which one process dies; `moments`: name -> what brings that about."""

    class Killed(base):
        def update(self, batch, clock):
            is_mine = PROCESSES[who] in os.environ["MLXE_ROLE"]
            due = is_mine and life() <= LIVES and clock.updates >= self.every * life() + 1
            if due and moment == "updating":
                die()
            if due and not self.armed and moment in moments:
                type(self).armed = True  # of the class: an object's attributes are kept
                moments[moment]()
            answer = super().update(batch, clock)
            if due and moment == "updated":
                die()
            return answer

        armed = False
        every = 1 if base.memory == "rollouts" else 5

    return Killed


for _name, _base in KINDS.items():
    for _who in PROCESSES:
        for _moment in ("updating", "updated", *TOGETHER):
            globals()[f"{_name}_{_who}_{_moment}"] = killed(_base, _who, _moment)
