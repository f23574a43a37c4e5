"""CartPole whose 501st step waits for a file, so that what a test does beside a run is done before the run ends."""

import time
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

FREE_STEPS = 500
LIMIT_S = 60.0


class Gated(CartPoleEnv):
    """Each environment steps freely at first, and then only once the file `gate` exists."""

    def __init__(self, gate):
        super().__init__()
        self._gate, self._steps, self._is_open = Path(gate), 0, False

    def step(self, action):
        self._steps += 1
        if self._steps > FREE_STEPS and not self._is_open:
            deadline = time.monotonic() + LIMIT_S
            while not self._gate.exists():
                if time.monotonic() > deadline:
                    raise gymnasium.error.Error(f"{self._gate} was not made within {LIMIT_S} s")
                time.sleep(0.01)
            self._is_open = True
        return super().step(action)
