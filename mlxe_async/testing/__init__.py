"""For tests of runs: an environment that counts its steps, and a check of what became of them.

The environment is named in a settings file like any other:

    [task]
    env = "mlxe_async.testing:Counting-v0"
    kwargs = { length = 20, ending = "turns" }

`CountingEnv` says in every observation which step of which life of which executor it is; `audit` reads the rows that a
run keeps and proves that they are what the environments lived through: a prefix of every life, nothing twice, nothing
joined that does not belong together.

    counting, auditing                          the environment and the check
    whereabouts                                 in which process of a run code is running
"""

import gymnasium

from mlxe_async.testing.auditing import Audit, audit, rows_of
from mlxe_async.testing.counting import CountingEnv, Place, decode
from mlxe_async.testing.whereabouts import Whereabouts, whereabouts

__all__ = [
    "Audit",
    "CountingEnv",
    "Place",
    "Whereabouts",
    "audit",
    "decode",
    "rows_of",
    "whereabouts",
]

gymnasium.register("Counting-v0", entry_point=f"{__name__}.counting:CountingEnv")
