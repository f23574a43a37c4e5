"""How many faults of its environments an executor forgives."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from mlxe_async.errors import MlxeError
from mlxe_async.rows import Array

STEPS_PER_FAULT = 10  # good steps of an environment that make up for one fault: a hundredth is lived with for good


class TooManyFaults(MlxeError):
    """An executor's environments failed more often than its budget allows."""


class FaultBudget:
    """Counts the faults of each environment that are not made up for yet.

    Args:
        envs: number of environments B.
        window_s: faults older than this many seconds are forgotten.
    """

    def __init__(self, envs: int, window_s: float) -> None:
        self._window_s = window_s
        self._faults: list[deque[float]] = [deque() for _ in range(envs)]
        self._good_steps = np.zeros(envs, dtype=np.int64)

    def stepped(self, ok: Array) -> None:
        """Environments made a step, those of them that are true (B,) a good one."""
        self._good_steps += ok

    def failed(self, env: int) -> int:
        """Environment `env` failed. Returns how many of its faults count now."""
        now, faults = time.monotonic(), self._faults[env]
        made_up_for, self._good_steps[env] = divmod(int(self._good_steps[env]), STEPS_PER_FAULT)
        while faults and (made_up_for > 0 or now - faults[0] > self._window_s):
            faults.popleft()
            made_up_for -= 1
        faults.append(now)
        return len(faults)
