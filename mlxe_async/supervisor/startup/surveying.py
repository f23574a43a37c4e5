"""A closer look at a task, and advice on it, by a child process as the probe is: what hangs or dies there is told.

A check shows it in lines: host, environment, costs, the rate under each schedule, and advice.
"""

from __future__ import annotations

import asyncio
import os
import resource
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from mlxe_async.analysis.forecast import Costs, Shape, outlook, rates
from mlxe_async.cores import FEW, usable_cores
from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process
from mlxe_async.ipc.shared.segments import available_memory
from mlxe_async.schedules.soundness import Facts, verdicts
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

WIDTH, INDENT = 100, 14
KINDS = ("serial", "is", "istb", "ia", "oa")
PROMISES = {True: "", False: "NOT AS IT SHOULD BE: ", None: "not certain: "}
WORTH = 1.1
"""Times as fast, from which on another schedule is named."""
SLOW_S = 1.0
"""Seconds of an update from which on a GPU that is there is named."""


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


def told(settings: Settings, facts: Mapping[str, Any], found: Mapping[str, Any], plan_bytes: int) -> Iterator[str]:
    """Yield the lines for what a closer look found.

    Args:
        settings: with all defaults.
        facts: what the probe found before.
        found: by `workers.survey`.
        plan_bytes: of the memory plan.
    """
    yield from _line("host", _host(found.get("accelerator", ""), plan_bytes))
    if "failed" in found:
        yield from _line("costs", f"could not be measured: {found['failed']}")
        return
    kept = {promise: what for promise, is_kept, what in found["conformance"] if is_kept}
    if kept:
        ends = kept.pop("ends", "")
        fine = f"{', '.join(kept)} as they should be" if kept else ""
        yield from _line("environment", "; ".join(filter(None, (fine, ends))))
    for _, is_kept, what in found["conformance"]:
        if not is_kept:
            yield from _line("environment", f"{PROMISES[is_kept]}{what}")
    if "fault" in found:
        yield from _line("costs", f"could not be measured: {found['fault']}")
        return
    yield from _line("costs", _costs(found))
    costs = Costs(found["step_s"], found["act_s"], found["update_s"], found["updates_per_row"])
    shape = _shape(settings, found)
    forecast = rates(costs, shape, [kind for kind in KINDS if kind == shape.kind or _is_sound(kind, settings, facts)])
    by_kind = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in forecast.items())
    alone = ", without the other programs" if _others() else ""
    yield from _line("predicted", f"rows/s at most{alone}, by schedule.kind: {by_kind}; now {shape.kind}")
    yield from _line("advice", _advice(settings, found, costs, shape, forecast))


def _line(label: str, words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=label.ljust(INDENT), subsequent_indent=" " * INDENT)


def _host(accelerator: str, plan_bytes: int) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [f"{one:,}" if one != resource.RLIM_INFINITY else "any number" for one in (soft, hard)]
    left = available_memory()
    memory = f"{left / 2**30:.1f} GiB of memory left, of which the plan takes {plan_bytes / max(1, left):.1%}"
    load = _others()
    busy = f" (other programs keep {load:.1f} busy)" if load else ""
    descriptors = f"{limits[0]} descriptors, at most {limits[1]}"
    return f"{usable_cores()} cores{busy}; {memory}; {descriptors}; {accelerator or 'no accelerator'}"


def _others() -> float:
    """Cores that other programs keep busy; less than one is nothing."""
    load = os.getloadavg()[0]
    return load if load >= 1 else 0.0


def _costs(found: Mapping[str, Any]) -> str:
    envs = found["envs"]
    policy = f"the policy {_time(found['act_s'])}" + (f" for {envs} environments" if envs > 1 else "")
    update = f"an update of {found['rows']:,} rows {'about ' * found['is_estimated']}{_time(found['update_s'])}"
    each = found["updates_per_row"]
    often = (
        f", {each:.3g} for each row" if each >= 1 else f", one in {1 / each:,.0f} rows" if each else ", none due yet"
    )
    return f"a step {_time(found['step_s'])}, a reset {_time(found['reset_s'])}, {policy}, {update}{often}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _shape(settings: Settings, found: Mapping[str, Any]) -> Shape:
    schedule, cores = settings.schedule, usable_cores()
    return Shape(
        schedule.kind,
        schedule.executors,
        schedule.envs_per_executor,
        cores,
        rows=found["steps"] * schedule.envs_per_executor,
        rollout_steps=schedule.most_steps,
        own_memorizer=schedule.memorizer == "own" or (schedule.memorizer == "auto" and cores > FEW),
    )


def _is_sound(kind: str, settings: Settings, facts: Mapping[str, Any]) -> bool:
    """Return whether the algorithm may learn under this kind of schedule."""
    schedule = settings.schedule
    asked = Facts(
        kind=kind,
        memory=facts["memory_kind"],
        off_policy=facts["off_policy"],
        bootstraps=facts["bootstraps"],
        sync=schedule.sync,
        unfinished="keep" if kind == "ia" else None,
        max_policy_lag=8 if kind == "oa" else None,
        envs=schedule.envs_per_executor,
    )
    return not any(one.refused for one in verdicts(asked))


def _advice(
    settings: Settings, found: Mapping[str, Any], costs: Costs, shape: Shape, forecast: Mapping[str, float]
) -> str:
    expected = outlook(costs, shape)
    said, may_be_measured = [expected.sentence], bool(expected.change)
    now = forecast.get(shape.kind, 0.0)
    best = max(forecast, key=lambda kind: forecast[kind], default=shape.kind)
    if now and forecast[best] > WORTH * now and f'"{best}"' not in said[0]:
        said.append(f'schedule.kind = "{best}" is predicted to be {forecast[best] / now:.1f} times as fast')
        may_be_measured = True
    if shape.executors > shape.cores:
        said.append(f"{shape.executors} executors share {shape.cores} cores: schedule.executors = {shape.cores}")
        may_be_measured = True
    if found["accelerator"] and settings.learner.device == "cpu" and found["update_s"] > SLOW_S:
        said.append('an update is long: try learner.device = "cuda"')
    if may_be_measured:
        said.append("tune FILE measures such changes, or with --any those that change what is learned from")
    return "; ".join(said)
