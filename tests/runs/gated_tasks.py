"""CartPole whose 501st step waits for a lock, so that what a test does beside a run is done before the run ends."""

import fcntl
from pathlib import Path

from gymnasium.envs.classic_control.cartpole import CartPoleEnv

FREE_STEPS = 500


class Gated(CartPoleEnv):
    """Each environment steps freely at first, and goes on once the file `gate` is not locked."""

    def __init__(self, gate):
        super().__init__()
        self._gate, self._steps = Path(gate), 0

    def step(self, action):
        self._steps += 1
        if self._steps == FREE_STEPS + 1:
            with self._gate.open() as gate:
                fcntl.flock(gate, fcntl.LOCK_SH)
        return super().step(action)
