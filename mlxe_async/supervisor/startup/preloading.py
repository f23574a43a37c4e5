"""The nursery has, before it forks, slow modules, imported once, and an environment that was given from Python."""

from __future__ import annotations

import importlib.util

from mlxe_async.algorithms import REGISTRY
from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.settings import Settings
from mlxe_async.settings.task import POOL
from mlxe_async.tasks import given

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


class Handed:
    """Carries `Supervisor(env=...)` to the processes of a run; nothing where there is none.

    Args:
        settings: as they were loaded.
        env: what makes the environments, if it is given from Python.

    Raises:
        TaskError: it cannot be carried, or the settings name one that was given from Python and is missing.

    Attributes:
        settings: with the environment's name as `[task] env`.
    """

    def __init__(self, settings: Settings, env: given.Maker | None) -> None:
        self.settings, self._packed = settings, b""
        self._segment: Segment | None = None
        if env is not None:
            self._packed = given.packed(env)
            self.settings = settings.with_env(given.name_of(env))
        elif settings.task.env.startswith(given.PREFIX):
            raise given.lacking(settings.task.env)

    def hand_to(self, nursery: Nursery) -> None:
        """Put it into shared memory, which all children get from now on."""
        if self._packed:
            self._segment = Segment.create(given.HANDED, len(self._packed))
            self._segment.buffer[:] = self._packed
            nursery.handed[given.HANDED] = self._segment.fd

    def close(self) -> None:
        """Give the memory back."""
        if self._segment is not None:
            self._segment.close()
