"""For tests of runs: environments that count or misbehave on purpose, and a check of what became of their steps.

Both environments are named in a settings file like any other:

    [task]
    env = "mlxe_async.testing:Chaos-v0"
    kwargs = { fault = "segfault", executor = 1, step = 300 }

`ChaosEnv` does one thing wrong, at a place that follows from its arguments alone. `CountingEnv`, on which it is built,
says in every observation which step of which life of which executor it is; `audit` reads the rows that a run keeps and
proves that they are what the environments lived through: a prefix of every life, nothing twice, nothing joined that
does not belong together.
"""

import gymnasium

from mlxe_async.testing.auditing import Audit, audit, rows_of
from mlxe_async.testing.chaos import FAULTS, ChaosEnv
from mlxe_async.testing.counting import CountingEnv, Place, decode
from mlxe_async.testing.whereabouts import Whereabouts, whereabouts

__all__ = [
    "FAULTS",
    "Audit",
    "ChaosEnv",
    "CountingEnv",
    "Place",
    "Whereabouts",
    "audit",
    "decode",
    "rows_of",
    "whereabouts",
]

gymnasium.register("Counting-v0", entry_point=f"{__name__}.counting:CountingEnv")
gymnasium.register("Chaos-v0", entry_point=f"{__name__}.chaos:ChaosEnv")
