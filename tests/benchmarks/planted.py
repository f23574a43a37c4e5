"""Tasks with a planted cost, for `verdicts.py`: what they do is CartPole's, and how long it takes is not."""

from __future__ import annotations

import time
from typing import Any

import gymnasium


class Sleeps(gymnasium.Wrapper):
    """Each step sleeps: a simulator that waits for something else."""

    def __init__(self, env: gymnasium.Env, seconds: float = 0.002) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """As the environment's, later."""
        time.sleep(self._seconds)
        return self.env.step(action)


class Burns(gymnasium.Wrapper):
    """Each step computes: a simulator that needs a core."""

    def __init__(self, env: gymnasium.Env, seconds: float = 0.001) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """As the environment's, later."""
        until = time.thread_time() + self._seconds
        while time.thread_time() < until:
            pass
        return self.env.step(action)


class Lags(gymnasium.Wrapper):
    """Each step sleeps, those of executor 0 ten times as long."""

    def __init__(self, env: gymnasium.Env, seconds: float = 0.0005) -> None:
        super().__init__(env)
        with open("/proc/self/comm") as file:  # noqa: PTH123 - one line
            self._seconds = seconds * (10 if file.read().strip() == "mlxe-exe-0" else 1)

    def step(self, action: Any) -> Any:
        """As the environment's, later."""
        time.sleep(self._seconds)
        return self.env.step(action)


class Slows(Lags):
    """Each step sleeps, those of executor 0 longer with every step."""

    def __init__(self, env: gymnasium.Env, seconds: float = 0.0005) -> None:
        super().__init__(env, seconds)
        self._more = seconds / 100 if self._seconds > seconds else 0.0
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """As the environment's, later and later."""
        self._seconds += self._more
        return super().step(action)


class SlowResets(gymnasium.Wrapper):
    """Each reset sleeps: a simulator that loads a level."""

    def reset(self, **given: Any) -> Any:
        """As the environment's, later."""
        time.sleep(0.05)
        return self.env.reset(**given)
