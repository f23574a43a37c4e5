"""Advice on a task and a closer look at it, by a child process as the probe is: what hangs or dies there is told."""

from __future__ import annotations

import asyncio
from typing import Any

from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process
from mlxe_async.settings import Settings
from mlxe_async.supervisor.startup.host_limits import expect_memory, reserve_descriptors
from mlxe_async.supervisor.startup.preloading import PRELOADED
from mlxe_async.supervisor.startup.probe import (
    CLOSE_S,
    answer,
    blaming_the_task,
    probe_process,
    refuse_task,
    watched,
)
from mlxe_async.supervisor.waiting import to_the_end


async def surveyed(settings: Settings, process: Process) -> dict[str, Any]:
    """Have the probe, which is still there, look closer at what it found fit; see `workers.survey`.

    Raises:
        Hung: a call into the environment or the algorithm did not return within its limit.
        TaskError: the probe died of it.
    """
    with blaming_the_task(settings, process):
        found: dict[str, Any] = await process.call("survey", settings=settings.model_dump(mode="json"))
    return found


async def advised(settings: Settings) -> dict[str, Any]:
    """Have a child try the task out with all built-in algorithms; see `workers.advising.advised`.

    Raises:
        TaskError: the environment is not acceptable.
        Hung: a call into it did not return within its limit.
        ResourceError: there is too little memory, or too few descriptors.
    """
    expect_memory(settings)
    reserve_descriptors(settings)
    nursery, processes = Nursery(), list[Process]()
    try:
        await nursery.start(PRELOADED, list(settings.run.python_path))
        async with probe_process(nursery, settings, processes) as process, asyncio.TaskGroup() as group:
            with blaming_the_task(settings, process):
                await process.start()
                facts = await answer(process, "advise")
            watcher = group.create_task(watched(settings, process))
            await process.stop(CLOSE_S)
            await watcher
    finally:
        await to_the_end(_ended(nursery, processes))
    refuse_task(settings, facts)
    return facts


async def _ended(nursery: Nursery, processes: list[Process]) -> None:
    nursery.wake()
    async with asyncio.TaskGroup() as group:
        for process in processes:
            group.create_task(process.stop(CLOSE_S))
    await nursery.stop()
