"""Algorithms whose process is killed at a chosen moment: `killed_learners:dqn_published`, once in each of three lives.

A life is killed in the first call of `update` from a number of updates on, or at the moment named after it.
"""

import os
import signal

import numpy as np

from mlxe_async.algorithms.a2c import A2C
from mlxe_async.algorithms.apex import ApeX
from mlxe_async.algorithms.dqn import DQN
from mlxe_async.algorithms.interface import Priorities
from mlxe_async.algorithms.mlxe.paper import MLxE
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.algorithms.q_learning import QLearning
from mlxe_async.algorithms.rainbow import Rainbow
from mlxe_async.algorithms.reinforce import Reinforce
from mlxe_async.algorithms.sac import SAC
from mlxe_async.algorithms.sarsa import Sarsa
from mlxe_async.algorithms.td3 import TD3
from mlxe_async.ipc.shared import kept, weights
from mlxe_async.memory.bookkeeping import Bookkeeping
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory

LIVES = 3


class Prioritised(DQN):
    """Rows are drawn by what the update before left: the order of the rewards and the weights decides."""

    priorities = Priorities(kind="td", exponent=0.7)

    def update(self, batch, clock):
        metrics, _ = super().update(batch, clock)
        return metrics, np.abs(batch["obs"][:, 2]) + abs(metrics["loss"])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def before(function):
    def killed(*args, **kwargs):
        die()
        return function(*args, **kwargs)

    return killed


def after(function):
    def killed(*args, **kwargs):
        function(*args, **kwargs)
        die()

    return killed


def half_kept(slot, sequence, label, arrays):
    """Some arrays are new, the others old, and the slot says that it is not whole."""
    slot._words.set("sequence", sequence - 1)
    for name in list(arrays)[: len(arrays) // 2 + 1]:
        slot._arrays[name][...] = arrays[name]
    die()


DRAWS = ((ReplayMemory, "draw"), (RolloutMemory, "draw"), (RolloutMemory, "draw_rows"))
MOMENTS = {
    "keeping": lambda: setattr(kept._Slot, "write", half_kept),
    "kept": lambda: setattr(kept._Slot, "write", after(kept._Slot.write)),
    "publishing": lambda: setattr(weights, "checksum", before(weights.checksum)),
    "published": lambda: setattr(weights.WeightsWriter, "publish", after(weights.WeightsWriter.publish)),
    "noting": lambda: setattr(ReplayMemory, "note_priorities", after(ReplayMemory.note_priorities)),
    "settled": lambda: [setattr(kind, "settle", after(kind.settle)) for kind in (ReplayMemory, RolloutMemory)],
    "phase": lambda: setattr(ReplayMemory, "begin_phase", after(ReplayMemory.begin_phase)),
    "counted": lambda: setattr(ReplayMemory, "begin_phase", before(ReplayMemory.begin_phase)),
    "drawing": lambda: setattr(Bookkeeping, "store", before(Bookkeeping.store)),
    "drawn": lambda: [setattr(kind, name, after(getattr(kind, name))) for kind, name in DRAWS],
}
"""What is changed in a process that is to die there; it takes effect after the update that changes it."""


def life():
    return int(os.environ["MLXE_ROLE"].rpartition(":")[2])


def killed(base, moment):
    class Killed(base):
        def update(self, batch, clock):
            # A plan that is repeated begins at the same number: the next life must come further.
            due = life() <= LIVES and clock.updates >= self.every * life() + 1
            if due and moment == "updating":
                die()
            answer = super().update(batch, clock)
            if due and moment == "updated":
                die()
            if due and not self.armed and moment in MOMENTS:
                type(self).armed = True  # of the class: an object's attributes are kept
                MOMENTS[moment]()
            return answer

        armed = False
        every = 1 if base.memory == "rollouts" else 5

    return Killed


KINDS = {"mlxe": MLxE, "dqn": DQN, "ppo": PPO, "td": Prioritised, "sac": SAC, "td3": TD3}
KINDS |= {"a2c": A2C, "reinforce": Reinforce, "q_learning": QLearning, "sarsa": Sarsa, "apex": ApeX, "rainbow": Rainbow}
for _name, _base in KINDS.items():
    for _moment in ("never", "updating", "updated", *MOMENTS):
        globals()[f"{_name}_{_moment}"] = killed(_base, _moment)
