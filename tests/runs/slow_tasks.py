"""Tasks for tests: CartPole with delays that do not change what it does."""

import os
import time

import gymnasium


class SleepsNowAndThen(gymnasium.Wrapper):
    """Sleeps in some steps, depending on the process it lives in, so that another executor is the first to finish."""

    def __init__(self, env):
        super().__init__(env)
        self._every = 7 + os.getpid() % 5
        self._steps = 0

    def step(self, action):
        self._steps += 1
        if self._steps % self._every == 0:
            time.sleep(0.002)
        return self.env.step(action)
