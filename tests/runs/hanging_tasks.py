"""CartPole that hangs in a way and at a place of its arguments, and says in a file when it begins to.

At its import it hangs if the variable HANG_AT_IMPORT names a way.
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from mlxe_async.testing.whereabouts import whereabouts

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from misbehaving.faults import HANGING


def hang(how):
    """Tell the file HANG_MARK the time, and do not return."""
    if mark := os.environ.get("HANG_MARK"):
        Path(mark).write_text(repr(time.monotonic()))
    HANGING[how](SimpleNamespace(seconds=1e9), None)


class Hanging(CartPoleEnv):
    """Hangs in the process of `role` at `where`: `make`, `reset`, `step` (the first), `later` (the third), `close`."""

    def __init__(self, how="sleep", where="step", role="probe", **kwargs):
        super().__init__(**kwargs)
        self._how, self._where = how, where if whereabouts().role == role else ""
        self._steps = 0
        self._at("make")

    def _at(self, place):
        if place == self._where:
            hang(self._how)

    def reset(self, **kwargs):
        self._at("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self._steps += 1
        self._at({1: "step", 3: "later"}.get(self._steps))
        return super().step(action)

    def close(self):
        self._at("close")
        super().close()


gymnasium.register("Hanging-v0", entry_point=Hanging)
if how := os.environ.get("HANG_AT_IMPORT"):
    hang(how)
