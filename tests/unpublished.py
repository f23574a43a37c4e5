"""Algorithms whose policy reads what is not published; and some that only look like it."""

import collections
import copy
import dataclasses
import enum
import functools
import random
import types

import numpy as np
import torch
from torch import nn

from mlxe_async.algorithms import Algorithm
from mlxe_async.algorithms.distributions import Categorical
from mlxe_async.algorithms.dqn import DQN
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.algorithms.q_learning import QLearning
from mlxe_async.rows import Column

TEMPERATURE = 1.0
TABLE = {"temperature": 1.0}


class Small(Algorithm):
    """Learns a softmax policy by its log-probabilities; `scale` is what its logits are multiplied by."""

    off_policy = "corrects"

    def build(self):
        self.net = nn.Linear(4, 2)

    def build_learner(self):
        self.optimiser = torch.optim.Adam(self.net.parameters(), 0.01)

    def scale(self):
        return 1.0

    def logits(self, obs):
        return self.net(obs)

    def policy(self, obs, acting=None):
        return Categorical(self.logits(obs) * self.scale())

    def update(self, batch, clock):
        rows = self.tensors(batch)
        loss = -self.policy(rows["obs"]).log_prob(rows["action"]).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.change()
        return {"loss": loss}

    def change(self):
        pass


class Number(Small):
    def build(self):
        super().build()
        self.temperature = 1.0

    def scale(self):
        return self.temperature

    def change(self):
        self.temperature *= 1.5


class Seldom(Number):
    """Changes it at the third update for the first time."""

    def build_learner(self):
        super().build_learner()
        self.done = 0

    def change(self):
        self.done += 1
        self.temperature = 1.0 if self.done < 3 else 2.0


class OfArray(Number):
    def build(self):
        super().build()
        self.temperature = np.ones(2, np.float32)

    def scale(self):
        return torch.from_numpy(self.temperature)


class OfDictionary(Small):
    def build(self):
        super().build()
        self.known = {"temperature": [1.0]}

    def scale(self):
        return self.known["temperature"][0]

    def change(self):
        self.known["temperature"][0] += 1


class Helper:
    def __init__(self):
        self.temperature = 1.0


class OfObject(Small):
    def build(self):
        super().build()
        self.helper = Helper()

    def scale(self):
        return self.helper.temperature

    def change(self):
        self.helper.temperature += 1


class Slotted:
    __slots__ = ("net", "temperature")

    def __init__(self):
        self.temperature, self.net = 1.0, nn.Linear(4, 2)


class OfSlot(OfObject):
    def build(self):
        super().build()
        self.helper = Slotted()


class OfModule(Small):
    def build(self):
        super().build()
        self.net.gain = 1.0

    def scale(self):
        return self.net.gain

    def change(self):
        self.net.gain += 1


class OfArrayInModule(OfModule):
    def build(self):
        super().build()
        self.net.gain = np.ones(2, np.float32)

    def scale(self):
        return torch.from_numpy(self.net.gain)


class OfText(Small):
    def build(self):
        super().build()
        self.phase = "warm"

    def scale(self):
        return 1.0 if self.phase == "warm" else 3.0

    def change(self):
        self.phase = "hot"


class Phase(enum.Enum):
    WARM = 1.0
    HOT = 3.0


class OfEnum(Small):
    def build(self):
        super().build()
        self.phase = Phase.WARM

    def scale(self):
        return self.phase.value

    def change(self):
        self.phase = Phase.HOT


@dataclasses.dataclass(frozen=True)
class Mode:
    temperature: float


class OfFrozen(Small):
    def build(self):
        super().build()
        self.mode = Mode(1.0)

    def scale(self):
        return self.mode.temperature

    def change(self):
        self.mode = Mode(3.0)


class OfMethod(Small):
    def build(self):
        super().build()
        self.how = self.warm

    def warm(self):
        return 1.0

    def hot(self):
        return 3.0

    def scale(self):
        return self.how()

    def change(self):
        self.how = self.hot


class OfSet(Small):
    def build(self):
        super().build()
        self.seen = set()

    def scale(self):
        return 1.0 + len(self.seen)

    def change(self):
        self.seen.add(len(self.seen))


class OfProperty(Small):
    def build(self):
        super().build()
        self._inner = 1.0

    @property
    def temperature(self):
        return self._inner

    def scale(self):
        return self.temperature

    def change(self):
        self._inner += 1


class OfGlobal(Small):
    def scale(self):
        return TEMPERATURE

    def change(self):
        global TEMPERATURE
        TEMPERATURE += 1


class OfGlobalTable(Small):
    def scale(self):
        return TABLE["temperature"]

    def change(self):
        TABLE["temperature"] += 1


class OfNewGlobal(Small):
    def scale(self):
        return globals().get("MADE_LATER", 1.0)

    def change(self):
        globals()["MADE_LATER"] = 3.0


class OfClass(Small):
    temperature = 1.0

    def scale(self):
        return self.temperature

    def change(self):
        type(self).temperature += 1


class OfDefault(Small):
    def scale(self, known=[1.0]):  # noqa: B006 - what is tried
        return known[0]

    def change(self):
        type(self).scale.__defaults__[0][0] += 1


def remembering(function):
    calls = 0

    @functools.wraps(function)
    def counted(self):
        nonlocal calls
        calls += function(self) == "count"
        return 1.0 + calls

    return counted


class OfClosure(Small):
    counting = False

    @remembering
    def scale(self):
        return "count" if self.counting else "tell"

    def change(self):
        self.counting = True
        self.scale()
        self.counting = False


class LearnsOther(Small):
    """Learns what `nets` finds, wherever that is."""

    def build_learner(self):
        self.optimiser = torch.optim.Adam(self.other().parameters(), 0.1)

    def logits(self, obs):
        return self.other()(obs)


class InPartial(LearnsOther):
    def build(self):
        super().build()
        self.head = functools.partial(nn.functional.relu, inplace=False)
        self.body = functools.partial(lambda net, obs: net(obs), nn.Linear(4, 2))

    def other(self):
        return self.body.args[0]

    def logits(self, obs):
        return self.body(obs)


class InClosure(LearnsOther):
    def build(self):
        super().build()
        net = nn.Linear(4, 2)
        self.body = lambda: net

    def other(self):
        return self.body()


class InSet(LearnsOther):
    def build(self):
        super().build()
        self.nets = {nn.Linear(4, 2)}

    def other(self):
        return next(iter(self.nets))


class InDeque(LearnsOther):
    def build(self):
        super().build()
        self.nets = collections.deque([nn.Linear(4, 2)])

    def other(self):
        return self.nets[0]


class InSlot(LearnsOther):
    def build(self):
        super().build()
        self.helper = Slotted()

    def other(self):
        return self.helper.net


class MadeLater(Small):
    def scale(self):
        return getattr(self, "extra", 1.0)

    def change(self):
        self.extra = nn.Parameter(torch.tensor(3.0))


class Hooked(Small):
    def build_learner(self):
        super().build_learner()
        self.net.register_forward_hook(lambda _module, _given, found: found * 3)


class HookedLater(Small):
    def change(self):
        self.net.register_forward_pre_hook(lambda _module, given: (given[0] + 1,))


class OwnForward(Small):
    def build_learner(self):
        super().build_learner()
        self.net.forward = lambda obs: nn.functional.linear(obs, self.net.weight, self.net.bias) * 3


class Features(Small):
    """Random features, which each object draws for itself."""

    def build(self):
        self.net = nn.Linear(8, 2)
        self.features = self.rng.normal(size=(4, 8)).astype(np.float32)

    def logits(self, obs):
        return self.net(obs @ torch.from_numpy(self.features))


class GlobalFeatures(Features):
    def build(self):
        super().build()
        self.features = np.random.normal(size=(4, 8)).astype(np.float32)


class OwnAct(Number):
    """Explores by a number of its own, without a word in the policy."""

    def scale(self):
        return 1.0

    def act(self, obs, rng, acting):
        found = super().act(obs, rng, acting)
        explore = rng.random(len(obs)) < min(1.0, self.temperature - 1)
        return {**found, "action": np.where(explore, 1 - found["action"], found["action"])}


class OwnGreedy(Number):
    def scale(self):
        return 1.0

    def greedy(self, obs, acting=None):
        best = super().greedy(obs, acting)
        return best if self.temperature == 1.0 else 1 - best


class Carries(Number):
    carry = (Column("level", "<f4", ()),)

    def scale(self):
        return 1.0

    def act(self, obs, rng, acting):
        found = super().act(obs, rng, acting)
        acting.carry["level"] += self.temperature
        return found


class Stops(Number):
    stop_columns = (Column("worth", "<f4", ()),)

    def scale(self):
        return 1.0

    def at_stop(self, next_obs):
        return {"worth": np.full(len(next_obs), self.temperature, np.float32)}


class OfLearner(Small):
    def build_learner(self):
        super().build_learner()
        self.baseline = nn.Linear(4, 2)

    def scale(self):
        return 1.0 if not self.asked else self.baseline.weight.mean()

    asked = False

    def change(self):
        self.asked = True


class HotPPO(PPO):
    hot = 1.0

    def build(self):
        super().build()
        self.hot = 1.0

    def distribution(self, features, mask=None):
        return super().distribution(features * self.hot, mask)

    def update(self, batch, clock):
        self.hot += 0.5
        return super().update(batch, clock)


class BonusDQN(DQN):
    def build(self):
        super().build()
        self.bonus = 0.0

    def scores(self, outputs):
        found = super().scores(outputs)
        return found + self.bonus * np.arange(found.shape[-1]) if isinstance(found, np.ndarray) else found

    def update(self, batch, clock):
        self.bonus += 1.0
        return super().update(batch, clock)


class Counts(QLearning):
    """Explores what it seldom did: by counts that only the learner has."""

    def build(self):
        super().build()
        self.visits = np.ones(self.table.shape)

    def log_probs(self, q):
        return super().log_probs(q - self.visits[0])

    def update(self, batch, clock):
        self.visits[:, 0] += 100.0
        return super().update(batch, clock)


class Numpy(Algorithm):
    """Without torch, and with weights of its own."""

    off_policy = "corrects"
    parameters = (("w", (4, 2)),)

    def build(self):
        self.w, self.temperature = np.zeros((4, 2), np.float32), 1.0

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.parameters = (("w", (4, 2)),)

    def policy(self, obs, acting=None):
        return Categorical(np.asarray(obs) @ self.w * np.float32(self.temperature))

    def load(self, flat):
        self.w = np.array(flat, np.float32).reshape(4, 2)

    def weights(self):
        return self.w.ravel().copy()

    def set_weights(self, flat):
        self.load(flat)

    def update(self, batch, clock):
        self.w[:, 0] += 0.1
        self.temperature += 1
        return {"loss": 0.0}


class OfSettings(Small):
    """Writes into its own settings."""

    def scale(self):
        return getattr(self.settings, "temperature", 1.0)

    def change(self):
        self.settings = types.SimpleNamespace(temperature=3.0)


# -- what goes through --


class OfTensor(Small):
    """A tensor of build's is published, too."""

    def build(self):
        super().build()
        self.temperature = torch.ones(2)

    def scale(self):
        return self.temperature

    def change(self):
        self.temperature += 1


class OfBuffer(Small):
    def build(self):
        super().build()
        self.net.register_buffer("gain", torch.ones(2))

    def scale(self):
        return self.net.gain

    def change(self):
        self.net.gain += 1


class Replaced(Small):
    def change(self):
        self.net = nn.Linear(4, 2)
        self.build_learner()


class Trains(Small):
    """Layers that learn otherwise than they act."""

    def build(self):
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))

    def logits(self, obs):
        return self.net(obs.reshape(-1, 4)).reshape(*obs.shape[:-1], 2)


class Averages(Small):
    """Publishes an average of what it learns."""

    def build_learner(self):
        super().build_learner()
        self.average = copy.deepcopy(self.net)

    def weights(self):
        if not self.learns:
            return super().weights()
        return np.concatenate([one.detach().numpy().ravel() for one in self.average.parameters()])

    def change(self):
        with torch.no_grad():
            for mean, one in zip(self.average.parameters(), self.net.parameters(), strict=True):
                mean.lerp_(one, 0.5)


class LearnsBySelf(Small):
    """Is told who asks, so that it learns by another temperature than it acts by."""

    def scale(self):
        return 3.0 if self.learns else 1.0


class OwnNoise(Small):
    """Draws from its own generator."""

    def act(self, obs, rng, acting):
        return self.policy(torch.from_numpy(obs), acting).act(self.rng)


class Counter(Number):
    """A number that only the learner reads."""

    def scale(self):
        return 1.0


class DrawsByAll(Small):
    """Acts and learns by whatever draws random numbers."""

    def build(self):
        super().build()
        self.drawn = torch.Generator()

    def policy(self, obs, acting=None):
        self.rng.normal(size=3)
        torch.randn(3, generator=self.drawn)
        return Categorical(self.logits(obs) + torch.randn(2) + np.random.normal() + random.gauss())


class Caches(Small):
    """Remembers what it computed last, and learns from it."""

    def logits(self, obs):
        self.net.last = self.last = self.net(obs)
        return self.last

    def update(self, batch, clock):
        if clock.updates:
            self.optimiser.param_groups[0]["lr"] = 0.01 + abs((self.last + self.net.last).detach().mean().item())
        return super().update(batch, clock)


class ByClock(Small):
    def policy(self, obs, acting=None):
        return Categorical(self.net(obs) * (1.0 + 0 if acting is None else 1.0 + acting.steps))


REFUSED = {
    "Number": "temperature",
    "OfArray": "temperature",
    "OfDictionary": "known.temperature.0",
    "OfObject": "helper.temperature",
    "OfSlot": "helper.temperature",
    "OfModule": "net.gain",
    "OfArrayInModule": "net.gain",
    "OfText": "phase",
    "OfEnum": "phase",
    "OfFrozen": "mode.temperature",
    "OfMethod": "how.function",
    "OfSet": "seen",
    "OfProperty": "_inner",
    "OfGlobal": "unpublished.TEMPERATURE",
    "OfGlobalTable": "unpublished.TABLE",
    "OfNewGlobal": "unpublished.MADE_LATER",
    "OfClass": "unpublished.OfClass.temperature",
    "OfDefault": "unpublished.OfDefault.scale.__defaults__",
    "OfClosure": "unpublished.OfClosure.scale.calls",
    "InPartial": "body.args.0.bias",
    "InClosure": "body.net.bias",
    "InSet": "nets.0.bias",
    "InDeque": "nets.0.bias",
    "InSlot": "helper.net.bias",
    "MadeLater": "extra",
    "Hooked": "net.forward_hooks.0",
    "HookedLater": "net.forward_pre_hooks.0",
    "OwnForward": "net.forward",
    "Features": "features",
    "GlobalFeatures": "features",
    "OwnAct": "temperature",
    "OwnGreedy": "temperature",
    "Carries": "temperature",
    "Stops": "temperature",
    "OfLearner": "asked",
    "HotPPO": "hot",
    "BonusDQN": "bonus",
    "Counts": "visits",
    "Numpy": "temperature",
    "OfSettings": "settings",
}
"""Class -> what is told that it acts by without its being published."""
CHOSEN = {"Counts": ("FrozenLake-v1", {"behaviour": "softmax"})}
"""Environment and settings of those that do not take any."""
