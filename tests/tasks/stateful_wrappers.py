"""Wrappers that keep something between episodes, and tell it well or badly."""

import gymnasium
import numpy as np


class Best(gymnasium.RewardWrapper):
    """Rewards, with the largest so far; it tells that."""

    def __init__(self, env):
        super().__init__(env)
        self.largest = 0.0

    def reward(self, reward):
        self.largest += reward
        return self.largest

    def get_state(self):
        return {"largest": self.largest}

    def set_state(self, state):
        self.largest = state["largest"]


class Forgetful(Best):
    """Tells nothing of what it keeps."""

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


class Deaf(Best):
    """Takes nothing up."""

    def set_state(self, state):
        pass


class Odd(Best):
    """Tells what is not plain."""

    def get_state(self):
        return {"seen": [1, {2, 3}]}


class Large(Best):
    """Tells more than can be kept."""

    def get_state(self):
        return {"rows": np.zeros(10_000)}


class Raising(Best):
    """Has a mistake."""

    def get_state(self):
        return {"largest": self.largets}


class Body(gymnasium.Env):
    """An environment whose methods of these names tell of its body, as MuJoCo's and others do."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.wins = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.wins += 1
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def get_state(self):
        return {"wins": self.wins}

    def set_state(self, state):
        self.wins = state["wins"]


class Winning(Body):
    """The same, of which it says that it outlives episodes."""

    keeps_state = True


gymnasium.register("Body-v0", entry_point=Body)
gymnasium.register("Winning-v0", entry_point=Winning)
