"""Environments that misbehave on purpose, for runs with this folder's parent in their Python path:

    [task]
    env = "misbehaving:Chaos-v0"
    kwargs = { fault = "segfault", executor = 1, step = 300 }

`ChaosEnv` does one thing wrong, at a place that follows from its arguments alone.
"""

import gymnasium

from misbehaving.chaos import FAULTS, ChaosEnv

__all__ = ["FAULTS", "ChaosEnv"]

gymnasium.register("Chaos-v0", entry_point=f"{__name__}.chaos:ChaosEnv")
