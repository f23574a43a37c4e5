"""The probe: a child process tries out task and algorithm before anything else is started."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlxe_async.errors import Hung, ProcessDied, ResourceError, RunFailed, SettingsError, TaskError
from mlxe_async.ipc.processes.life import Hang
from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process
from mlxe_async.ipc.processes.restarts import RestartPolicy
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.settings import Evaluation, Settings
from mlxe_async.settings.effects import idle, refused_and_remarks
from mlxe_async.settings.problems import Problem
from mlxe_async.supervisor.plan.provenance import of_this_program
from mlxe_async.supervisor.startup.cautions import cautions
from mlxe_async.supervisor.startup.host_limits import expect_memory
from mlxe_async.supervisor.startup.preloading import preloaded
from mlxe_async.supervisor.waiting import to_the_end

_NAMED_KEY = re.compile(r"(?P<key>task(\.\w+)+): ")
PROBE = "mlxe_async.workers:serve_probe"
REHEARSAL = "in 'rehearse'"  # how its death is told then
CLOSE_S = 1.0  # for the environment that was tried out to close
CLOSE_AT_ONCE_S = 0.2
START_S = 60.0  # to shake hands; nothing foreign is called before
SILENCE_S = 60.0  # what the probe does between two calls that have limits of their own
_KEYS = {
    "import": ["reset_timeout_s"],
    "make": ["reset_timeout_s"],
    "reset": ["reset_timeout_s"],
    "step": ["step_timeout_s", "reset_timeout_s"],  # the second for the first step of an episode
    "update": ["update_timeout_s"],
}
_OF_THE_ALGORITHM = ("load", "build", "act", "update")
MOST_REHEARSED = 1 << 24  # parameters of an algorithm that each start tries out: it is made twice more for that
_OURS = "mlxe_async/ipc/processes/serve.py"  # from here on outwards every stack of the probe is the same
_SAME_LIMIT_S = 0.01


@dataclass(frozen=True)
class Probed:
    """What the probe found out.

    Args:
        settings: with all defaults that only the probe knows, those of `[algorithm]` included: every role gets these.
        facts: spaces, limits, numbers of parameters, the algorithm's own settings.
        cautions: what is odd about the settings, in words.
    """

    settings: Settings
    facts: dict[str, Any]
    cautions: list[str]


@contextlib.asynccontextmanager
async def probed(
    nursery: Nursery, settings: Settings, processes: list[Process], meanwhile: Sequence[str] = ()
) -> AsyncIterator[Probed]:
    """Start the nursery, have its first child judge task and algorithm, and import the rest meanwhile.

    Args:
        nursery: not yet started.
        settings: as they were loaded.
        processes: where the probe's process is kept while it lives, for the caller that has to stop it.
        meanwhile: the rest, modules that only children after the probe need.

    Raises:
        SettingsError: `[algorithm]` is not acceptable, or cannot learn under this schedule.
        TaskError: the environment is not.
        Hung: the environment, or an algorithm of the user's own, did not return within its limit.
        ResourceError: a package is broken, there is too little memory for any run, or memory.capacity_rows is more
            than any row could fit in.
    """
    expect_memory(settings)
    await nursery.start(preloaded(settings), list(settings.run.python_path))
    async with probe_process(nursery, settings, processes) as process, asyncio.TaskGroup() as group:
        with blaming_the_task(settings, process):
            await process.start()
        importing = group.create_task(nursery.preload(meanwhile))
        with blaming_the_task(settings, process):
            found = judged(settings, await answer(process))
        watcher = group.create_task(watched(settings, process))
        yield found
        await importing
        await process.stop(CLOSE_S)
        await watcher
    for module, failure in nursery.failures.items():
        raise ResourceError(f"the package {module} cannot be used: {failure['kind']}: {failure['message']}")


@contextlib.asynccontextmanager
async def probe_process(nursery: Nursery, settings: Settings, processes: list[Process]) -> AsyncIterator[Process]:
    """The probe's process, not yet started; stopped afterwards, however that ends."""
    spec = {"settings": settings.model_dump(mode="json"), "said": settings.said}
    limits = RestartPolicy(limit=0, start_timeout_s=START_S, silence_s=SILENCE_S)
    with Segment.create("probe", PAGE_BYTES) as segment:
        page = ProgressPage(segment.buffer)
        process = Process(
            lambda: nursery, "mlxe-probe", PROBE, lambda _epoch: spec, lambda: {"page": segment.fd}, page, limits
        )
        processes.append(process)
        grace_s = CLOSE_S
        try:
            yield process
        except asyncio.CancelledError:
            grace_s = CLOSE_AT_ONCE_S
            raise
        finally:
            await to_the_end(process.stop(grace_s))  # which bounds its own time
            processes.remove(process)
            page.release()


async def answer(process: Process, verb: str = "probe") -> dict[str, Any]:
    """Return what the probe found out; where it died, how it did."""
    facts: dict[str, Any]
    try:
        facts = await process.call(verb)
    except ProcessDied:
        if process.hang is None:
            await process.run()  # no other task buries it, and says how it ended
        raise
    return facts


async def rehearsed(settings: Settings, process: Process, *, only_published: bool = False) -> None:
    """Have the probe, which is still there, do one update on made-up rows.

    Args:
        settings: with all defaults.
        process: the probe's.
        only_published: see `workers.probe.Probe.rehearse`.

    Raises:
        SettingsError: the algorithm raises, or returns what it must not.
        Hung: a call into it did not return within its limit.
        TaskError: the probe died of it.
    """
    with blaming_the_task(settings, process):
        _refuse_problems(settings, await process.call("rehearse", only_published=only_published))


async def watched(settings: Settings, process: Process) -> None:
    """Bury the probe's process, and tell how it died if it was not told to stop."""
    with blaming_the_task(settings, process):
        await process.run()


@contextlib.contextmanager
def blaming_the_task(settings: Settings, process: Process) -> Iterator[None]:
    """Nothing but the task, or an algorithm of the user's own, gives the probe a reason to die or to hang."""
    try:
        yield
    except (ProcessDied, RunFailed) as error:
        place = settings.places.of(("task", "env"))
        if process.hang is not None:
            sentence = hang_sentence(settings, process.hang, process.stack)
            raise Hung(f"{place}: {sentence}", _shown(process.stack) if process.stack else "") from error
        if not process.death:  # it was never begun
            raise
        if REHEARSAL in process.death:
            place, name = settings.places.of(("algorithm", "name")), settings.algorithm.name
            what = f'"{name}" cannot learn: an update on made-up rows of this task\'s spaces ended its process'
            raise TaskError(f"{place}: algorithm.name: {what}: {process.death}") from error
        raise TaskError(f'{place}: the probe of task.env = "{settings.task.env}" failed: {process.death}') from error


def hang_sentence(settings: Settings, hang: Hang, stack: str) -> str:
    """Which call of the probe hung, for how long, where, and which setting gives it longer."""
    if hang.call in _OF_THE_ALGORITHM:
        what = f'the algorithm "{settings.algorithm.name}"'
    else:
        what = f'task.env = "{settings.task.env}"'
    schedule = settings.schedule
    limits = {
        "reset_timeout_s": schedule.reset_timeout_s,
        "step_timeout_s": schedule.step_timeout_s,
        "update_timeout_s": schedule.update_timeout_s,
    }
    asked = _KEYS.get(hang.call, [])
    keys = [f"schedule.{key}" for key in asked if abs(limits[key] - hang.limit_s) < _SAME_LIMIT_S]
    more = f"; if it only needs longer, raise {' or '.join(keys)}" if keys else ""
    frames = _frames(stack)
    where = f" in {frames[0]}" if frames else "; it left no stack"
    call = f" in {hang.call!r}" if hang.call else ""
    return f"the probe of {what} hangs{call}, over its limit of {hang.limit_s:g} s{where}{more}"


def _frames(stack: str) -> list[str]:
    """Frames of the thread that was asked for its stack, the innermost first."""
    _, found, rest = stack.partition("Current thread")
    lines = (rest if found else stack).splitlines()[1:]
    return [line.strip() for line in itertools.takewhile(str.strip, lines) if line.lstrip().startswith("File ")]


def _shown(stack: str) -> str:
    """Return what of a stack helps people, as lines."""
    frames = list(itertools.takewhile(lambda frame: _OURS not in frame, _frames(stack)))
    return "\n".join(["the stack of the probe, innermost call first:", *(f"  {frame}" for frame in frames)])


def judged(settings: Settings, facts: dict[str, Any]) -> Probed:
    """The whole settings that follow from what the probe reported.

    Raises:
        TaskError: the environment is not acceptable.
        SettingsError: the settings are not.
    """
    refuse_task(settings, facts)
    found = [Problem.from_json(problem) for problem in facts.get("idle", [])]
    _refuse_problems(settings, facts, refused_and_remarks(found, settings.places)[0])
    settings = settings.with_defaults(facts["defaults"])
    found += [*idle(settings, facts["memory_kind"]), *_idle_capacity(settings, facts)]
    refused, remarks = refused_and_remarks(found, settings.places)
    if refused:
        raise SettingsError([settings.places.line(problem) for problem in refused])
    settings = settings.model_copy(update={"evaluation": _judging(settings, facts["task"])})
    settings = settings.with_algorithm(facts["algorithm"])
    return Probed(settings, facts, [*cautions(settings, facts), *settings.places.remarks, *remarks])


def refuse_task(settings: Settings, facts: dict[str, Any]) -> None:
    """Refuse an environment that the probe found wanting.

    Raises:
        TaskError: it did.
    """
    if "task_error" in facts:
        named = _NAMED_KEY.match(facts["task_error"])
        key = named["key"] if named else "task.env"
        is_unknown = "there is no environment" in facts["task_error"]
        here_alone = of_this_program(settings.task.env) if is_unknown else ""
        raise TaskError(f"{settings.places.of(tuple(key.split('.')))}: {facts['task_error']}{here_alone}")


def _refuse_problems(settings: Settings, facts: dict[str, Any], others: Sequence[Problem] = ()) -> None:
    """Refuse what the probe found wrong, if anything, and tell other problems beside it."""
    if "problems" in facts:
        problems = [Problem(tuple(p["path"]), p["message"]) for p in facts["problems"]]
        raise SettingsError([settings.places.line(problem) for problem in (*problems, *others)])


def _judging(settings: Settings, task: dict[str, Any]) -> Evaluation:
    """`[evaluation]` as the task completes it; what nothing could judge is refused where a verdict is asked for."""
    limit = task["registered_max_episode_steps"] or settings.task.max_episode_steps
    evaluation = settings.evaluation.completed(task["reward_threshold"], limit)
    path, got = ("evaluation", "threshold"), 'got nothing, expected a number with evaluation.rule = "mean_return"'
    if settings.stop.solved and evaluation.rule is None:
        path, got = ("stop", "solved"), "got true, expected false"
    elif evaluation.rule != "mean_return" or evaluation.threshold is not None:
        return evaluation
    why = f"{settings.task.env} has no threshold of its own that says when it is solved"
    keys = 'evaluation.threshold = RETURN, or evaluation.rule = "cap" and evaluation.max_episode_steps = STEPS'
    raise SettingsError([settings.places.line(Problem(path, f"{got}: {why}; set {keys}"))])


def _idle_capacity(settings: Settings, facts: dict[str, Any]) -> Iterator[Problem]:
    """Rollouts are as many as are under way; only of episodes without a limit it says how long they may be."""
    is_used = settings.schedule.sync == "episode" and not facts["task"]["max_episode_steps"]
    if facts["memory_kind"] == "rollouts" and not is_used:
        name = settings.algorithm.name
        why = f'algorithm.name = "{name}" (it learns from rollouts, of which there are as many as are under way)'
        yield Problem(("memory", "capacity_rows"), f"has no effect with {why}; take it out", ("algorithm", "name"))
