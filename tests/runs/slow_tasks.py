"""Tasks for tests: CartPole with delays that do not change what it does."""

import os
import threading
import time
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Bare(gymnasium.Env):
    """Declares nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)


class SlowOne(gymnasium.Wrapper):
    """Sleeps in every step, eight times as long in those of one executor, be it a process or a thread.

    The others sleep too, so that a fast machine gets no further in a round than a slow one.
    """

    slow = 0

    def __init__(self, env):
        super().__init__(env)
        thread, process = threading.current_thread().name, Path("/proc/self/comm").read_text().strip()
        self._slow = thread == f"executor-{self.slow}" or process == f"mlxe-exe-{self.slow}"

    def step(self, action):
        time.sleep(0.004 if self._slow else 0.0005)
        return self.env.step(action)


class SlowFirst(SlowOne):
    """The first executor is slow."""


class SlowSecond(SlowOne):
    """The second executor is slow."""

    slow = 1


class MeetsTheOther(gymnasium.Wrapper):
    """The first step of every episode waits for that of another environment of the same process."""

    meeting = threading.Barrier(2)

    def reset(self, **kwargs):
        # The probe has nobody to meet.
        self._first = threading.current_thread() is not threading.main_thread()
        return self.env.reset(**kwargs)

    def step(self, action):
        if self._first:
            self.meeting.wait(30.0)
        self._first = False
        return self.env.step(action)


class HangsOnce(CartPoleEnv):
    """The first life of the process, the second environment: the 20th step never ends."""

    made = 0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        HangsOnce.made += 1
        self._hangs = HangsOnce.made == 2 and os.environ["MLXE_ROLE"].endswith(":1")
        self._steps = 0

    def step(self, action):
        self._steps += 1
        if self._hangs and self._steps == 20:
            time.sleep(1e6)
        return super().step(action)


class BreaksForOne(CartPoleEnv):
    """Whatever belongs to the second executor raises in its tenth step."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._steps = 0

    def step(self, action):
        self._steps += 1
        second = threading.current_thread().name == "executor-1"
        if self._steps % 10 == 0 and (second or Path("/proc/self/comm").read_text().strip() == "mlxe-exe-1"):
            raise ValueError("broken")
        return super().step(action)


gymnasium.register("HangsOnce-v0", entry_point=HangsOnce)
gymnasium.register("BreaksForOne-v0", entry_point=BreaksForOne)
