"""What must hold between keys that are each fine alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mlxe_async.errors import SettingsError
from mlxe_async.settings.forms import LARGEST
from mlxe_async.settings.model import Settings
from mlxe_async.settings.problems import Path, Problem, dotted, shown


def refuse_contradictions(settings: Settings) -> None:
    """Settings that were made by hand keep the rules that a file has to keep.

    Raises:
        SettingsError: keys contradict each other, with a line for each.
    """
    if problems := [settings.places.line(problem) for problem in contradictions(settings)]:
        raise SettingsError(problems)


def contradictions(settings: Settings) -> Iterator[Problem]:
    """Keys that are fine alone and not together; both are named."""
    schedule, memory, supervision = settings.schedule, settings.memory, settings.supervision
    evaluation, stop = settings.evaluation, settings.stop

    def at_most(path: Path, value: float, other: Path, limit: float) -> Iterator[Problem]:
        if value > limit:
            yield Problem(path, f"got {value}, expected at most {dotted(other)} = {limit}", other)

    executors = ("schedule", "executors")
    yield from at_most(("schedule", "min_executors"), schedule.min_executors, executors, schedule.executors)
    if schedule.sync == "episode" and schedule.envs_per_executor > 1:
        several = ("schedule", "envs_per_executor")
        message = f'got "episode", expected "rollout" with {dotted(several)} = {schedule.envs_per_executor}'
        yield Problem(("schedule", "sync"), message, several)
    if schedule.kind == "istb" and schedule.memorizer == "own":
        kind = ("schedule", "kind")
        message = f'got "own", expected "auto" or "learner" with {dotted(kind)} = "istb": it is one process'
        yield Problem(("schedule", "memorizer"), message, kind)
    if settings.run.record and schedule.kind != "oa":
        why = "the others repeat themselves, or cannot be told by an order alone (ia)"
        message = f'got true, expected false with {dotted(("schedule", "kind"))} = "{schedule.kind}": {why}'
        yield Problem(("run", "record"), message, ("schedule", "kind"))
    if settings.run.record and schedule.memorizer == "own":
        own = ("schedule", "memorizer")
        message = f'got true, expected false with {dotted(own)} = "own": rows may be overwritten while they are read'
        yield Problem(("run", "record"), message, own)
    cartpole = settings.task.cartpole
    if "adverse_least" in cartpole.model_fields_set or "adverse_first" in cartpole.model_fields_set:
        least, first = ("task", "cartpole", "adverse_least"), ("task", "cartpole", "adverse_first")
        yield from at_most(least, cartpole.adverse_least, first, cartpole.adverse_first)
    capacity = ("memory", "capacity_rows")
    if memory.capacity_rows is None:
        derived = settings.capacity_rows
        if memory.keep_rows > derived:
            message = f"got {memory.keep_rows}, expected at most {derived}, which memory.capacity_rows is when left out"
            yield Problem(
                ("memory", "keep_rows"), f"{message} with schedule.executors = {schedule.executors}", executors
            )
    else:
        yield from at_most(("memory", "keep_rows"), memory.keep_rows, capacity, memory.capacity_rows)
        yield from at_most(("memory", "block_rows"), memory.block_rows, capacity, memory.capacity_rows)
    pause = ("supervision", "backoff_max_s")
    yield from at_most(("supervision", "backoff_s"), supervision.backoff_s, pause, supervision.backoff_max_s)
    cap = ("evaluation", "max_episode_steps")
    if evaluation.max_episode_steps is not None and "screen_steps" in evaluation.model_fields_set:
        yield from at_most(("evaluation", "screen_steps"), evaluation.screen_steps, cap, evaluation.max_episode_steps)
    if stop.solved and not evaluation.enabled:
        message = "got true, expected false with evaluation.enabled = false: nothing would ever be tested"
        yield Problem(("stop", "solved"), message, ("evaluation", "enabled"))
    if settings.run.record and settings.learner.promote_best:
        message = f"got true, expected false with learner.promote_best = {settings.learner.promote_best}"
        why = "what executors put aside for the learner is not recorded"
        yield Problem(("run", "record"), f"{message}: {why}", ("learner", "promote_best"))
    if schedule.kind in ("serial", "is"):
        lag, bound = ("schedule", "simulated_lag"), schedule.max_policy_lag
        if bound is not None:
            yield from at_most(lag, schedule.simulated_lag, ("schedule", "max_policy_lag"), bound)
        if schedule.simulated_lag and settings.learner.promote_best:
            message = f"got {settings.learner.promote_best}, expected 0 with {dotted(lag)} = {schedule.simulated_lag}"
            why = "what executors reach is the result of an older version than the newest"
            yield Problem(("learner", "promote_best"), f"{message}: {why}", lag)
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
