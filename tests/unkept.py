"""Algorithms whose updates depend on what is awkward to keep."""

import collections
import enum
import functools
import itertools
import random

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn
from unpublished import Small

from mlxe_async.algorithms.dqn import DQN
from mlxe_async.algorithms.ppo import PPO

SCALE = 1.0


class Base(Small):
    """Learns with a weight decay of `factor`, which each update changes by `change`."""

    def update(self, batch, clock):
        with torch.no_grad():
            self.net.weight.mul_(1 - 0.01 * float(self.factor()))
        return super().update(batch, clock)


class ListThatGrows(Base):
    def build_learner(self):
        super().build_learner()
        self.history = [1.0]

    def factor(self):
        return sum(self.history)

    def change(self):
        self.history.append(len(self.history))


class EmptyList(ListThatGrows):
    def build_learner(self):
        super().build_learner()
        self.history = []


class OfDeque(ListThatGrows):
    def build_learner(self):
        super().build_learner()
        self.history = collections.deque([1.0], maxlen=5)


class OfSet(ListThatGrows):
    def build_learner(self):
        super().build_learner()
        self.history = {1.0}

    def change(self):
        self.history.add(len(self.history) + 1)


class OfDictionary(ListThatGrows):
    def build_learner(self):
        super().build_learner()
        self.history = {"0": 1.0}

    def factor(self):
        return sum(self.history.values())

    def change(self):
        self.history[str(len(self.history))] = 2.0


class OfArray(ListThatGrows):
    def build_learner(self):
        super().build_learner()
        self.history = np.ones(1)

    def change(self):
        self.history = np.append(self.history, 2.0)


class OfTensor(ListThatGrows):
    def build_learner(self):
        super().build_learner()
        self.history = torch.ones(1)

    def change(self):
        self.history = torch.cat([self.history, torch.ones(1)])


class Later(Base):
    def factor(self):
        return getattr(self, "history", 0.0)

    def change(self):
        self.history = self.factor() + 1


class NothingThenTensor(ListThatGrows):
    def build_learner(self):
        super().build_learner()
        self.history = None

    def factor(self):
        return 0.0 if self.history is None else self.history.sum()

    def change(self):
        self.history = torch.ones(3)


class OfText(Base):
    def build_learner(self):
        super().build_learner()
        self.history = "a"

    def factor(self):
        return len(self.history)

    def change(self):
        self.history += "a"


class Phase(enum.Enum):
    COLD = 0
    HOT = 5


class OfEnum(Base):
    def build_learner(self):
        super().build_learner()
        self.history = Phase.COLD

    def factor(self):
        return self.history.value

    def change(self):
        self.history = Phase.HOT


class OfModule(Base):
    def build_learner(self):
        super().build_learner()
        self.net.seen = 0

    def factor(self):
        return self.net.seen

    def change(self):
        self.net.seen += 1


class OfCritic(OfModule):
    """The same of a module that only learns."""

    def build_learner(self):
        super().build_learner()
        self.critic = nn.Linear(1, 1)
        self.critic.seen = np.zeros(1)

    def factor(self):
        return self.critic.seen[0]

    def change(self):
        self.critic.seen += 1


class OfClosure(Base):
    def build_learner(self):
        super().build_learner()
        known = [0]
        self.known = lambda: known

    def factor(self):
        return self.known()[0]

    def change(self):
        self.known()[0] += 1


class OfPartial(OfClosure):
    def build_learner(self):
        super().build_learner()
        self.known = functools.partial(lambda known: known, [0])


class OfSlots(OfClosure):
    class Slotted:
        __slots__ = ("known",)

    def build_learner(self):
        super().build_learner()
        self.known = self.Slotted()
        self.known.known = 0

    def factor(self):
        return self.known.known

    def change(self):
        self.known.known += 1


class OfGlobal(Base):
    def factor(self):
        return SCALE

    def change(self):
        global SCALE
        SCALE += 1


class OfClass(Base):
    seen = 0

    def factor(self):
        return self.seen

    def change(self):
        type(self).seen += 1


class OfCounter(Base):
    def build_learner(self):
        super().build_learner()
        self.counter = itertools.count()

    def factor(self):
        return next(self.counter)


class OfSettings(Base):
    class Notes(BaseModel):
        seen: int = 0

    def build_learner(self):
        super().build_learner()
        self.notes = self.Notes()

    def factor(self):
        return self.notes.seen

    def change(self):
        self.notes.seen += 1


class OwnPython(Base):
    def build_learner(self):
        super().build_learner()
        self.drawing = random.Random(0)  # noqa: S311 - no secrets here

    def factor(self):
        return self.drawing.random()


class OwnNumpy(Base):
    def build_learner(self):
        super().build_learner()
        self.drawing = np.random.RandomState(0)

    def factor(self):
        return self.drawing.random_sample()


class ByLBFGS(Small):
    def build_learner(self):
        self.optimiser = torch.optim.LBFGS(self.net.parameters(), 0.1, max_iter=2)

    def update(self, batch, clock):
        rows = self.tensors(batch)

        def loss():
            self.optimiser.zero_grad()
            found = -self.policy(rows["obs"]).log_prob(rows["action"]).mean()
            found.backward()
            return found

        return {"loss": self.optimiser.step(loss)}


class NewGroup(Small):
    def build_learner(self):
        self.optimiser = torch.optim.Adam([self.net.weight], 0.1)

    def update(self, batch, clock):
        if len(self.optimiser.param_groups) == 1:
            self.optimiser.add_param_group({"params": [self.net.bias]})
        return super().update(batch, clock)


# -- what is kept --


class GlobalNumpy(Base):
    def factor(self):
        return np.random.normal()


class GlobalPython(Base):
    def factor(self):
        return random.gauss(0, 1)


class GlobalTorch(Base):
    def factor(self):
        return torch.randn(1)


class Numbers(Base):
    def build_learner(self):
        super().build_learner()
        self.seen, self.known = 0, {"level": [0.5, None]}

    def factor(self):
        return self.seen + self.known["level"][0]

    def change(self):
        self.seen += 1
        self.known["level"] = [self.seen / 2, True]


class Penalised(PPO):
    """An author's number, array and draws on top of what comes with the package."""

    def build_learner(self):
        super().build_learner()
        self.penalty, self.before = 1.0, np.zeros(2)

    def update(self, batch, clock):
        self.penalty = 0.5 * self.penalty + np.random.random() + self.before[0]
        self.before += 1
        return super().update({**batch, "reward": batch["reward"] * np.float32(self.penalty)}, clock)


class Remembers(DQN):
    def build_learner(self):
        super().build_learner()
        self.history = [1.0]

    def update(self, batch, clock):
        self.history.append(1.0)
        return super().update(batch, clock)


TOLD = {
    "ListThatGrows": "history",
    "EmptyList": "history",
    "OfDeque": "history (deque)",
    "OfSet": "history (set)",
    "OfDictionary": "history",
    "OfArray": "history",
    "OfTensor": "history",
    "Later": "history",
    "NothingThenTensor": "history",
    "OfText": "history",
    "OfEnum": "history",
    "OfModule": "net.seen",
    "OfCritic": "critic.seen",
    "OfClosure": "known",
    "OfPartial": "known",
    "OfSlots": "known",
    "OfGlobal": "unkept.SCALE",
    "OfClass": "unkept.OfClass.seen",
    "OfCounter": "counter (count)",
    "OfSettings": "notes",
    "OwnPython": "drawing",
    "OwnNumpy": "drawing (RandomState)",
    "ByLBFGS": "optimiser (history of LBFGS)",
    "NewGroup": "optimiser",
    "Remembers": "history",
}
"""Class -> what is told that it changes and no state holds."""
