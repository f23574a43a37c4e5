"""Which kind of environments an executor steps: `[task] vectorize`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, MutableSequence
from typing import Any

from mlxe_async.settings.task import POOL, task_of
from mlxe_async.tasks.native import NativeTask, NotForVectors, why_not
from mlxe_async.tasks.pooled import PooledTask
from mlxe_async.tasks.vector import VectorTask


def training_task(
    task: Mapping[str, Any],
    count: int,
    *,
    cursor: MutableSequence[int] | memoryview[int] | None = None,
    threads: int = 1,
) -> VectorTask | NativeTask:
    """The environments of one executor, as `task.vectorize` says.

    Args:
        task: the `[task]` table.
        count: how many environments.
        cursor: see `VectorTask`.
        threads: on which EnvPool steps them, unless the task says otherwise.

    Raises:
        TaskError: as `VectorTask`; or `vectorize` is `"native"` or `"envpool"` and there is no such vector of the
            environment, or it is to be changed in ways that only single environments can be.
        EnvironmentFault: the environment's constructor raised.
    """
    settings = task_of(task)
    if settings.vectorize == POOL:
        return PooledTask(task, count, threads=threads)
    if settings.vectorize == "native":
        return NativeTask(task, count)
    if settings.vectorize == "auto" and not why_not(settings):
        with contextlib.suppress(NotForVectors):
            return NativeTask(task, count)
    return VectorTask(task, count, cursor=cursor)
