"""The nursery imports what is slow before it forks, so that no child does it again."""

from __future__ import annotations

import importlib.util

from mlxe_async.algorithms import REGISTRY
from mlxe_async.settings import Settings
from mlxe_async.settings.task import POOL

PRELOADED = [
    "numpy",
    "gymnasium",
    "mlxe_async.settings.model",
    "mlxe_async.workers",
    "mlxe_async.tasks.probe",
    "mlxe_async.roles.executor",
    "mlxe_async.roles.memorizer",
    "mlxe_async.roles.evaluator",
]
# Slow to import, for they bring torch, and not needed by the probe, which therefore need not wait for them.
PRELOADED_MEANWHILE = [
    "torch",
    "torch.optim",
    "mlxe_async.networks.sequential",
    "mlxe_async.workers.warm",
    "mlxe_async.roles.learner",
]


def preloaded(settings: Settings) -> list[str]:
    """Modules to import before the probe: with the algorithm's own file, or all that one of the user's may build on.

    EnvPool is among them where it steps the environments, for its import takes a second.
    """
    name = settings.algorithm.name
    pool = [POOL] if settings.task.vectorize == POOL and importlib.util.find_spec(POOL) is not None else []
    known = [name] if name in REGISTRY else REGISTRY
    return [*PRELOADED, *pool, *(f"mlxe_async.algorithms.{one}" for one in known)]
