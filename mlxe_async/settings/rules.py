"""Rules between keys that are each fine alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from mlxe_async.errors import SettingsError
from mlxe_async.settings.forms import LARGEST
from mlxe_async.settings.model import Settings
from mlxe_async.settings.problems import Path, Problem, path_of, shown
from mlxe_async.settings.schedules import OaSchedule


def refuse_contradictions(settings: Settings) -> None:
    """Settings that were made by hand keep the rules that a file has to keep.

    Raises:
        SettingsError: keys contradict each other, with a line for each.
    """
    if problems := [settings.places.line(problem) for problem in contradictions(settings)]:
        raise SettingsError(problems)


def contradictions(settings: Settings) -> Iterator[Problem]:
    """Keys that are fine alone and not together; both are named."""
    schedule, memory, evaluation = settings.schedule, settings.memory, settings.evaluation
    record, of = settings.run.record, settings.value_of

    def at_most(key: str, other: str) -> Iterator[Problem]:
        if of(key) > of(other):
            yield Problem(path_of(key), f"got {of(key)}, expected at most {other} = {of(other)}", path_of(other))

    def not_with(key: str, expected: str, other: str, why: str = "") -> Problem:
        message = f"got {shown(of(key))}, expected {expected} with {other} = {shown(of(other))}"
        return Problem(path_of(key), f"{message}: {why}" if why else message, path_of(other))

    yield from at_most("schedule.min_executors", "schedule.executors")
    yield from _explored(settings, not_with)
    if schedule.sync != "rollout" and schedule.envs_per_executor > 1:
        yield not_with("schedule.sync", '"rollout"', "schedule.envs_per_executor")
    if schedule.kind in ("serial", "istb") and schedule.executors_as == "threads":
        yield not_with("schedule.executors_as", '"processes"', "schedule.kind", "it is one process as it is")
    if schedule.kind == "istb" and schedule.memorizer == "own":
        yield not_with("schedule.memorizer", '"auto" or "learner"', "schedule.kind", "it is one process")
    if record and schedule.kind != "oa":
        why = "the others repeat themselves, or cannot be told by an order alone (ia)"
        yield not_with("run.record", "false", "schedule.kind", why)
    if record and schedule.memorizer == "own":
        yield not_with("run.record", "false", "schedule.memorizer", "rows may be overwritten while they are read")
    if settings.task.cartpole.model_fields_set & {"adverse_least", "adverse_first"}:
        yield from at_most("task.cartpole.adverse_least", "task.cartpole.adverse_first")
    if memory.capacity_rows is None:
        derived = settings.capacity_rows
        if (memory.keep_rows or 0) > derived:
            message = f"got {memory.keep_rows}, expected at most {derived}, which memory.capacity_rows is when left out"
            executors = f"schedule.executors = {schedule.executors}"
            yield Problem(("memory", "keep_rows"), f"{message} with {executors}", ("schedule", "executors"))
    else:
        if memory.keep_rows is not None:
            yield from at_most("memory.keep_rows", "memory.capacity_rows")
        yield from at_most("memory.block_rows", "memory.capacity_rows")
    yield from at_most("supervision.backoff_s", "supervision.backoff_max_s")
    if evaluation.max_episode_steps is not None and "screen_steps" in evaluation.model_fields_set:
        yield from at_most("evaluation.screen_steps", "evaluation.max_episode_steps")
    if settings.stop.solved and not evaluation.enabled:
        yield not_with("stop.solved", "false", "evaluation.enabled", "nothing would ever be tested")
    if record and settings.learner.promote_best:
        why = "what executors put aside for the learner is not recorded"
        yield not_with("run.record", "false", "learner.promote_best", why)
    if schedule.kind in ("serial", "is"):
        if schedule.max_policy_lag is not None:
            yield from at_most("schedule.simulated_lag", "schedule.max_policy_lag")
        if schedule.simulated_lag and settings.learner.promote_best:
            why = "what executors reach is the result of an older version than the newest"
            yield not_with("learner.promote_best", "0", "schedule.simulated_lag", why)
    if schedule.gradients == "executors":
        yield from _exchanged(settings, not_with)
    if schedule.kind == "oa":
        if schedule.max_policy_lag is not None:
            yield from at_most("schedule.simulated_lag", "schedule.max_policy_lag")
        yield from _pushed(schedule, not_with)
        if schedule.combine == "best_score" and schedule.gradients == "executors":
            yield from _by_score(settings, not_with)
    yield from _staged(settings, not_with)
    allowed = settings.run.allow_modules
    for path, module in settings.named_modules():
        if allowed is not None and not any(f"{module}.".startswith(f"{name}.") for name in allowed):
            names = f"run.allow_modules ({', '.join(allowed) or 'none'})"
            yield Problem(path, f'got the module "{module}", expected one of {names}', ("run", "allow_modules"))
    if settings.task.kwargs.get("render_mode") == "human":
        message = (
            'got "human", expected none: training would open a window in each environment; watch it by play --render'
        )
        yield Problem(("task", "kwargs", "render_mode"), message)
    yield from not_plain(("task", "kwargs"), settings.task.kwargs)
    yield from not_plain(("algorithm",), settings.algorithm.model_extra)


def _explored(settings: Settings, not_with: Callable[..., Problem]) -> Iterator[Problem]:
    """Keys of executors that act in different ways."""
    schedule = settings.schedule
    if schedule.exploit_only >= schedule.executors:
        message = (
            f"got {schedule.exploit_only}, expected at most {schedule.executors - 1} with schedule.executors = "
            f"{schedule.executors}: nothing would be learned from"
        )
        yield Problem(("schedule", "exploit_only"), message, ("schedule", "executors"))
        return
    for name in ("temperature_by_executor", "epsilon_by_executor"):
        numbers = getattr(schedule, name)
        if numbers is not None and len(numbers) != schedule.learned_from:
            told = f"schedule.executors = {schedule.executors}"
            told += f" and schedule.exploit_only = {schedule.exploit_only}" if schedule.exploit_only else ""
            message = f"got {len(numbers)} numbers, expected {schedule.learned_from} with {told}"
            yield Problem(("schedule", name), message, ("schedule", "executors"))
    if schedule.temperature_by_executor is not None and schedule.epsilon_by_executor is not None:
        why = "an executor explores in one way"
        yield not_with("schedule.epsilon_by_executor", "none", "schedule.temperature_by_executor", why)
    if schedule.exploit_only and settings.task.reset_options is not None:
        why = "items that such an executor plays would not be learned from"
        yield not_with("schedule.exploit_only", "0", "task.reset_options", why)


def _staged(settings: Settings, not_with: Callable[..., Problem]) -> Iterator[Problem]:
    """Rules of a curriculum and of episodes from a data set."""
    task, record = settings.task, settings.run.record
    for number, stage in enumerate(task.stages):
        path = ("task", "stages", number)
        is_last = number == len(task.stages) - 1
        if is_last and stage.has_end:
            yield Problem(path, "got a condition in the last stage, expected none: it goes on to the end of the run")
        if not is_last and not stage.has_end:
            yield Problem(path, "got no until_return and no until_steps, expected one: only the last stage has no end")
        yield from not_plain((*path, "kwargs"), stage.kwargs)
        for place, one in enumerate(stage.wrappers or ()):
            yield from not_plain((*path, "wrappers", place, "kwargs"), one.kwargs)
    if len(task.stages) == 1:
        yield Problem(("task", "stages"), "got one stage, expected two or more: write its keys into [task]")
    if task.stages and settings.learner.promote_best:
        yield not_with("learner.promote_best", "0", "task.stages", "the results of an easier stage would be the best")
    for name in ("stages", "reset_options"):
        if record and getattr(task, name):
            why = "which stage and item an episode has is not recorded"
            yield not_with("run.record", "false", f"task.{name}", why)
    if task.single_only and task.vectorize in ("native", "envpool"):
        why = "such episodes begin one by one"
        yield not_with("task.vectorize", '"single" or "auto"', f"task.{task.single_only}", why)
    if task.shuffle_options and task.reset_options is None:
        yield Problem(("task", "shuffle_options"), "got true, expected task.reset_options with it: there is no item")


def _pushed(schedule: OaSchedule, not_with: Callable[..., Problem]) -> Iterator[Problem]:
    """Keys of gradients that executors push, where others make them needless."""
    unused = {
        ("combine", '"fifo"'): schedule.combine != "fifo",
        ("simulated_lag", "0"): schedule.simulated_lag > 0,
        ("hogwild", "false"): schedule.hogwild,
        ("replay", '"global"'): schedule.replay == "local",
        ("max_loss_deviations", "none"): schedule.max_loss_deviations is not None,
    }
    if schedule.gradients == "learner":
        for (name, expected), is_given in unused.items():
            if is_given:
                yield not_with(f"schedule.{name}", expected, "schedule.gradients", "the learner makes them all")
    elif schedule.hogwild and schedule.memorizer == "learner":
        why = "an executor would wait for the learner's process"
        yield not_with("schedule.memorizer", '"own" or "auto"', "schedule.hogwild", why)
    if schedule.combine != "delay_compensated":
        if schedule.compensation != "adaptive":
            yield not_with("schedule.compensation", '"adaptive"', "schedule.combine", "nothing is compensated")
        if schedule.compensation_strength is not None:
            yield not_with("schedule.compensation_strength", "none", "schedule.combine", "nothing is compensated")
    if schedule.combine != "mean" and schedule.mean_of is not None:
        yield not_with("schedule.mean_of", "none", "schedule.combine", "no mean is taken")


def _by_score(settings: Settings, not_with: Callable[..., Problem]) -> Iterator[Problem]:
    """Keys that do not go with whole networks, which are judged by single episodes."""
    schedule, combine = settings.schedule, "schedule.combine"
    assert schedule.kind == "oa"  # noqa: S101 - nowhere else is anything pushed
    wanted = {
        ("schedule.sync", '"episode"'): (schedule.sync != "episode", "a network is judged by a whole episode"),
        ("schedule.envs_per_executor", "1"): (schedule.envs_per_executor > 1, "a network is judged by one episode"),
        ("schedule.hogwild", "false"): (schedule.hogwild, "an executor hears first whether its network was the best"),
        ("schedule.simulated_lag", "0"): (schedule.simulated_lag > 0, "whole networks are compared, and none is late"),
        ("schedule.max_loss_deviations", "none"): (schedule.max_loss_deviations is not None, "scores decide"),
        ("run.record", "false"): (settings.run.record, "what executors learn by themselves is not recorded"),
    }
    for (name, expected), (is_odd, why) in wanted.items():
        if is_odd:
            yield not_with(name, expected, combine, why)


def _exchanged(settings: Settings, not_with: Callable[..., Problem]) -> Iterator[Problem]:
    """Keys that do not go with gradients made by executors."""
    schedule, gradients = settings.schedule, "schedule.gradients"
    if schedule.kind not in ("serial", "is", "oa"):
        why = 'executors make updates together, as in "is" and "serial", or each alone, as in "oa"'
        yield not_with(gradients, '"learner"', "schedule.kind", why)
    elif schedule.kind == "oa":
        if schedule.updates_per_publish != 1:
            why = "each push is an update and a publication"
            yield not_with("schedule.updates_per_publish", "1", gradients, why)
    else:
        if schedule.simulated_lag and schedule.max_policy_lag is not None:
            yield not_with(gradients, '"learner"', "schedule.max_policy_lag", "each would leave out other rows")
        if settings.learner.keep_state_every > 1:
            why = "a process that begins anew goes on from the learner's state of the newest version"
            yield not_with("learner.keep_state_every", "1", gradients, why)
    if schedule.executors_as == "threads":
        if schedule.kind == "is":
            why = 'they share random generators while they wait for each other; "serial" has them in turn'
            yield not_with("schedule.executors_as", '"processes"', gradients, why)
        elif ":" in settings.algorithm.name:
            why = "an own algorithm draws from random generators that all threads share"
            yield not_with("schedule.executors_as", '"processes"', "algorithm.name", why)
    if settings.learner.promote_best:
        yield not_with(gradients, '"learner"', "learner.promote_best", "weights would be put back in one process alone")
    if settings.learner.device != "cpu":
        yield not_with(gradients, '"learner"', "learner.device", "executors differentiate on the CPU")


def not_plain(path: Path, value: Any) -> Iterator[Problem]:
    """Values inside free tables that JSON cannot carry: dates, NaN, infinities, numbers beyond 64 bits."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from not_plain((*path, key), item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from not_plain((*path, index), item)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"got {shown(value)}, expected a finite number")
    elif isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        yield Problem(path, f"got {shown(value)}, expected a whole number of at most 64 bits")
    elif value is not None and not isinstance(value, bool | int | float | str):
        yield Problem(path, f"got {shown(value)}, expected a text, a number, true or false, a list or a table")
