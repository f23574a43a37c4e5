"""Environments as newcomers write them, from what public trackers report: most have one thing wrong."""

import errno

import gymnasium
import numpy as np
from gymnasium import spaces

N = np.zeros(3, np.float32)


class Env(gymnasium.Env):
    """Three numbers, two actions, ten steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def step(self, action):
        self.steps += 1
        return self.shown(), self.reward(), self.steps >= 10, False, {}

    def shown(self):
        return N.copy()

    def reward(self):
        return 1.0


def made(name, **members):
    return type(name, (Env,), {"__module__": __name__, **members})


def old_reset(self, *, seed=None, options=None):
    self.steps = 0
    return N


def no_seed(self):
    self.steps = 0
    return N, {}


def no_options(self, seed=None):
    self.steps = 0
    return N, {}


def raising(error):
    def method(self, *_, **__):
        raise error

    return method


def shows(value):
    return {"shown": lambda self: value}


def pays(value):
    return {"reward": lambda self: value}


class Forgotten(Env):
    def __init__(self):
        self.observation_space = None


class NeedsSize(Env):
    def __init__(self, size):
        self.size = size


class NeedsScreen(Env):
    def __init__(self):
        raise RuntimeError("No available video device")


Plain = made("Plain")
OldReset = made("OldReset", reset=old_reset)
NoSeed = made("NoSeed", reset=no_seed)
NoOptions = made("NoOptions", reset=no_options)
OldStep = made("OldStep", step=lambda self, action: (N, 1.0, False, {}))
NoReturn = made("NoReturn", step=lambda self, action: None)
DoneOfNumpy = made("DoneOfNumpy", step=lambda self, action: (N, 1.0, np.bool_(False), False, {}))
DoneOfNumbers = made("DoneOfNumbers", step=lambda self, action: (N, 1.0, 0, False, {}))
RewardOfArray = made("RewardOfArray", **pays(np.ones(1, np.float32)))
RewardOfPoint = made("RewardOfPoint", **pays(np.array(1.0)))
RewardOfTwo = made("RewardOfTwo", **pays(np.ones(2)))
RewardOfNothing = made("RewardOfNothing", **pays(None))
RewardOfText = made("RewardOfText", **pays("1"))
RewardOfNan = made("RewardOfNan", **pays(float("nan")))
RewardOfTruth = made("RewardOfTruth", **pays(True))
ShowsList = made("ShowsList", **shows([0.0, 0.0, 0.0]))
ShowsDoubles = made("ShowsDoubles", **shows(np.zeros(3)))
ShowsColumn = made("ShowsColumn", **shows(np.zeros((3, 1), np.float32)))
ShowsFour = made("ShowsFour", **shows(np.zeros(4, np.float32)))
ShowsNan = made("ShowsNan", **shows(np.array([0, np.nan, 0], np.float32)))
ShowsNothing = made("ShowsNothing", **shows(None))
ShowsObjects = made("ShowsObjects", **shows(np.array(["a", "b", "c"])))
Counts = made(
    "Counts",
    observation_space=spaces.Box(0, 2**40, (1,), np.int64),
    **shows(np.array([2**24 + 1], np.int64)),
)
Doubles = made(
    "Doubles", observation_space=spaces.Box(-np.inf, np.inf, (1,), np.float64), **shows(np.array([2.0**24 + 1]))
)
SmallCounts = made("SmallCounts", observation_space=spaces.Box(0, 9, (1,), np.int64), **shows(np.array([5], np.int64)))
PictureOfFloats = made(
    "PictureOfFloats",
    observation_space=spaces.Box(0, 255, (3,), np.uint8),
    **shows(np.array([0.5, 0.5, 0.5], np.float32)),
)
TextSpace = made("TextSpace", observation_space=spaces.Text(5), **shows("abc"))
GraphSpace = made("GraphSpace", observation_space=spaces.Graph(spaces.Box(0, 1, (1,)), None))
NoSpace = Forgotten
WholeActions = made("WholeActions", action_space=spaces.Box(0, 3, (2,), np.int64))
TupleActions = made("TupleActions", action_space=spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))))
Started = made("Started", action_space=spaces.Discrete(3, start=5))
Raises = made("Raises", step=raising(KeyError("velocity")))
ExitsInStep = made("ExitsInStep", step=raising(SystemExit(3)))
OnePort = made("OnePort", __init__=raising(OSError(errno.EADDRINUSE, "Address already in use")))


def normalised():
    return gymnasium.wrappers.NormalizeReward(Plain())


gymnasium.register("NormalisedNewcomer-v0", entry_point=normalised)


class OwnStatistics(gymnasium.Wrapper):
    """A running mean of what it has seen, of its own making."""

    def __init__(self, env):
        super().__init__(env)
        self.total, self.count = 0.0, 0

    def _less_mean(self, obs):
        self.total, self.count = self.total + obs, self.count + 1
        return (obs - self.total / self.count).astype(obs.dtype)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self._less_mean(obs), info

    def step(self, action):
        obs, *others = self.env.step(action)
        return self._less_mean(obs), *others


class OwnScaler(gymnasium.Wrapper):
    """Rewards over the number of all steps so far."""

    steps = 0

    def step(self, action):
        obs, reward, *others = self.env.step(action)
        self.steps += 1
        return obs, reward / self.steps, *others


class Unseeded(gymnasium.Wrapper):
    """Rewards with a noise that no seed decides."""

    def step(self, action):
        obs, reward, *others = self.env.step(action)
        return obs, reward + np.random.default_rng().normal(), *others
