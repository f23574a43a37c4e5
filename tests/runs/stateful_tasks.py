"""Wrappers that keep something from one episode to the next, and tell it, or what is wrong with that."""

import json
import os

import gymnasium
import numpy as np


class Counting(gymnasium.ObservationWrapper):
    """Observations, scaled by the largest one seen so far, with how many were seen; all of it is kept.

    Args:
        env: what is wrapped.
        note: a file that is told, at each reset, how many observations were seen before it.
    """

    def __init__(self, env, note=""):
        super().__init__(env)
        shape = (env.observation_space.shape[0] + 1,)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.largest, self.seen, self.note = np.ones(shape[0] - 1), 0, note

    def reset(self, *, seed=None, options=None):
        if self.note:
            with open(self.note, "a") as file:  # noqa: PTH123 - appended to by several processes
                file.write(json.dumps({"pid": os.getpid(), "seed": seed, "seen": self.seen}) + "\n")
        return super().reset(seed=seed, options=options)

    def observation(self, observation):
        self.seen += 1
        self.largest = np.maximum(self.largest, np.abs(observation))
        return np.array([*(observation / self.largest), self.seen / 1000], np.float32)

    def get_state(self):
        return {"largest": self.largest, "seen": self.seen}

    def set_state(self, state):
        self.largest, self.seen = state["largest"], state["seen"]
