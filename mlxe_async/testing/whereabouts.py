"""In which process of a run the code that asks is running.

Every forked process carries `MLXE_ROLE=<run's tag>:<process name>:<epoch>` in its environment, for the guardian that
ends its orphans. That is also the way for an environment to learn whose it is, without any argument: an environment's
constructor gets the same `[task] kwargs` in every executor.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_ROLES = {"mlxe-exe": "executor", "mlxe-eval": "evaluator", "mlxe-probe": "probe", "mlxe-serial": "serial"}


@dataclass(frozen=True)
class Whereabouts:
    """A place in a run.

    Args:
        role: `"executor"`, `"evaluator"`, `"probe"`, `"serial"` (all roles in one process), or `"outside"` of any run.
        index: which executor, from 0; 0 for all other roles.
        epoch: which life of the process, from 1; 0 outside.
    """

    role: str
    index: int
    epoch: int


def whereabouts() -> Whereabouts:
    """Return where this process stands."""
    _, _, rest = os.environ.get("MLXE_ROLE", "").partition(":")
    name, _, epoch = rest.partition(":")
    for prefix, role in _ROLES.items():
        if name.startswith(prefix):
            index = name.removeprefix(prefix).removeprefix("-")
            return Whereabouts(role, int(index) if index.isdigit() else 0, int(epoch) if epoch.isdigit() else 1)
    return Whereabouts("outside", 0, 0)
