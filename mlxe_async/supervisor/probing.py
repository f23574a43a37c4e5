"""The first minute of a run: the nursery, and the probe that judges task and algorithm before anything is started."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from mlxe_async.errors import ProcessDied, ResourceError, RunFailed, SettingsError, TaskError
from mlxe_async.ipc.nursery import Nursery
from mlxe_async.ipc.process import Process
from mlxe_async.ipc.restarts import RestartPolicy
from mlxe_async.ipc.segments import BytePlan, available_memory
from mlxe_async.schedules.soundness import Facts, verdicts
from mlxe_async.settings import Settings
from mlxe_async.settings.effects import idle, refused_and_remarks
from mlxe_async.settings.problems import Problem

_NAMED_KEY = re.compile(r"(?P<key>task(\.\w+)+): ")
PROBE = "mlxe_async.workers:serve_probe"
PRELOADED = [
    "numpy",
    "gymnasium",
    "mlxe_async.workers",
    "mlxe_async.tasks.probe",
    "mlxe_async.algorithms.a3c",
    "mlxe_async.algorithms.dqn",
    "mlxe_async.algorithms.ppo",
    "mlxe_async.roles.executor",
    "mlxe_async.roles.memorizer",
    "mlxe_async.roles.evaluator",
    "mlxe_async.roles.learner",
]
# Slow to import and not needed by the probe, which therefore need not wait for it.
PRELOADED_MEANWHILE = ["torch", "torch.optim"]
CLOSE_S = 1.0  # for the environment that was tried out to close
PROBE_START_S = 60.0  # imports, and a network of the algorithm's
KEEP_ROWS = ("a3c", "dqn")  # built-in algorithms with a replay memory; of others only the probe can tell
LEAST_ROW_BYTES = 40  # what all columns of a row but its observations and the algorithm's own take together


@dataclass(frozen=True)
class Probed:
    """What the probe found out.

    Args:
        settings: with the defaults that only the probe knows.
        facts: spaces, limits, numbers of parameters, the algorithm's own settings.
        cautions: what is odd about the settings, in words.
    """

    settings: Settings
    facts: dict[str, Any]
    cautions: list[str]


@contextlib.asynccontextmanager
async def probed(nursery: Nursery, settings: Settings, processes: list[Process]) -> AsyncIterator[Probed]:
    """Start the nursery, have its first child judge task and algorithm, and import the rest meanwhile.

    Args:
        nursery: not yet started.
        settings: as they were loaded.
        processes: where the probe's process is kept while it lives, for whoever has to stop it.

    Raises:
        SettingsError: `[algorithm]` is not acceptable, or cannot learn under this schedule.
        TaskError: the environment is not.
        ResourceError: a package is broken, or memory.capacity_rows is more than any row could fit in.
    """
    _refuse_what_no_row_fits(settings)
    await nursery.start(PRELOADED, list(settings.run.python_path))
    spec = {"settings": settings.model_dump(mode="json")}
    limit_s = PROBE_START_S + 2.0 * settings.schedule.reset_timeout_s  # to make the environment, and to reset it
    limits = RestartPolicy(limit=0, start_timeout_s=limit_s, call_limit_s=limit_s)
    process = Process(lambda: nursery, "mlxe-probe", PROBE, lambda _epoch: spec, policy=limits)
    processes.append(process)
    async with asyncio.TaskGroup() as group:
        with _blaming_the_task(settings, process):
            await process.start()
        watcher = group.create_task(_watch(settings, process))
        importing = group.create_task(nursery.preload(PRELOADED_MEANWHILE))
        with _blaming_the_task(settings, process):
            found = _judged(settings, await process.call("probe"))
        yield found
        await importing
        await process.stop(CLOSE_S)
        await watcher
    processes.remove(process)
    for module, failure in nursery.failures.items():
        raise ResourceError(f"the package {module} cannot be used: {failure['kind']}: {failure['message']}")


async def _watch(settings: Settings, process: Process) -> None:
    with _blaming_the_task(settings, process):
        await process.run()


@contextlib.contextmanager
def _blaming_the_task(settings: Settings, process: Process) -> Iterator[None]:
    """Nothing but the task, or an algorithm of the user's own, gives the probe a reason to die or to hang."""
    try:
        yield
    except (ProcessDied, RunFailed) as error:
        if not process.death:  # it was never begun
            raise
        place = settings.places.of(("task", "env"))
        raise TaskError(f'{place}: the probe of task.env = "{settings.task.env}" failed: {process.death}') from error


def _refuse_what_no_row_fits(settings: Settings) -> None:
    """The whole plan needs the probe's word; what is too much for the smallest rows needs nobody's."""
    if settings.algorithm.name not in KEEP_ROWS:
        return
    least, rows = BytePlan(), settings.capacity_rows
    least.add(f"at least, for memory.capacity_rows = {rows}", rows * LEAST_ROW_BYTES)
    least.check(available_memory())


def _judged(settings: Settings, facts: dict[str, Any]) -> Probed:
    if "task_error" in facts:
        named = _NAMED_KEY.match(facts["task_error"])
        place = settings.places.of(tuple(named["key"].split(".")) if named else ("task", "env"))
        raise TaskError(f"{place}: {facts['task_error']}")
    found = [Problem.from_json(problem) for problem in facts.get("idle", [])]
    if "problems" in facts:
        problems = [Problem(tuple(p["path"]), p["message"]) for p in facts["problems"]]
        problems += refused_and_remarks(found, settings.places)[0]
        raise SettingsError([settings.places.line(problem) for problem in problems])
    settings = settings.with_defaults(facts["defaults"])
    found += [*idle(settings, facts["memory_kind"]), *_idle_capacity(settings, facts)]
    refused, remarks = refused_and_remarks(found, settings.places)
    if refused:
        raise SettingsError([settings.places.line(problem) for problem in refused])
    return Probed(settings, facts, [*_cautions(settings, facts), *settings.places.remarks, *remarks])


def _cautions(settings: Settings, facts: dict[str, Any]) -> list[str]:
    """Refuse what an algorithm cannot learn from under this schedule; what is merely odd is told by the log."""
    schedule = settings.schedule
    found = list(
        verdicts(
            Facts(
                kind=schedule.kind,
                memory=facts["memory_kind"],
                off_policy=facts["off_policy"],
                bootstraps=facts["bootstraps"],
                sync=schedule.sync,
                unfinished=getattr(schedule, "unfinished", None),
                max_policy_lag=getattr(schedule, "max_policy_lag", None),
            )
        )
    )
    refused = [Problem(verdict.key, verdict.message, verdict.other) for verdict in found if verdict.refused]
    if refused:
        raise SettingsError([settings.places.line(problem) for problem in refused])
    return [verdict.message for verdict in found]


def _idle_capacity(settings: Settings, facts: dict[str, Any]) -> Iterator[Problem]:
    """Rollouts are as many as are under way; only of episodes without a limit it says how long they may be."""
    is_used = settings.schedule.sync == "episode" and not facts["task"]["max_episode_steps"]
    if facts["memory_kind"] == "rollouts" and not is_used:
        name = settings.algorithm.name
        why = f'algorithm.name = "{name}" (it learns from rollouts, of which there are as many as are under way)'
        yield Problem(("memory", "capacity_rows"), f"has no effect with {why}; take it out", ("algorithm", "name"))
