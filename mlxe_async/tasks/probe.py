"""Trying an environment out once, before anything else is started because of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from mlxe_async.errors import EnvironmentFault, TaskError
from mlxe_async.rows import Array, Spaces
from mlxe_async.settings.task import task_of
from mlxe_async.tasks.making import read_spaces
from mlxe_async.tasks.measuring import random_action
from mlxe_async.tasks.native import NativeTask
from mlxe_async.tasks.sources import remark_of, spec_of
from mlxe_async.tasks.states import differences
from mlxe_async.tasks.training import training_task
from mlxe_async.tasks.vector import VectorTask

Closable = VectorTask | NativeTask
Limited = Callable[[str], contextlib.AbstractContextManager[None]]
"Bounds the time of one call into foreign code: `import`, `make`, `reset`, `first step` or `step`."

ATTEMPTS = 3
TIMED_STEPS = 64
TIMED_SECONDS = 0.05
REPEATED_STEPS = 16
SLOW_SECONDS = 1.0
"An environment whose reset takes longer is not asked to repeat itself; nor is it made anew if that takes longer."


def _unlimited(_call: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def probe(
    task: Mapping[str, Any], close_later: list[Closable] | None = None, limited: Limited = _unlimited
) -> dict[str, Any]:
    """Make the environment of a `[task]` table, reset it, step it at least once, and say what it is like.

    Args:
        task: the table, as `VectorTask` takes it.
        close_later: what was made is added here, for who must not wait for environments to close; left out, it is
            closed.
        limited: entered around each call into the environment's code, which may hang.

    Returns:
        Plain JSON facts: `env`; `spaces` (`Spaces.to_json`); `max_episode_steps`, the limit in force or null, and
        `registered_max_episode_steps`; `reward_threshold` as registered, or null, also where a wrapper changes rewards;
        `evaluation_vectorised`, whether tests use a simulator of the task's own; `keeps_state`, whether wrappers tell
        what they keep between episodes; `make_seconds`, `first_step_seconds`
        (with its reset), `step_seconds`; `notes`, odd but harmless things; `gymnasium`, its version.

    Raises:
        TaskError: unknown id (with the nearest), missing package (with what to install), unsupported space (by name),
            or the environment raised or broke its contract (which field, expected, got).
    """
    with limited("import"):
        spec_of(task_of(task))
    imported = time.perf_counter()
    try:
        with limited("make"):
            vector = VectorTask(task, 1)
    except EnvironmentFault as fault:
        raise TaskError(_sentence(fault)) from fault
    made = time.perf_counter()
    closing: list[Closable] = [vector]
    try:
        if task.get("vectorize", "single") != "single":
            _check_native(task, closing, limited)
        _check_stages(task, vector, limited)
        _try_out(vector, limited)
        tried = time.perf_counter()
        step_seconds, faults = _time_steps(vector, limited)
        if vector.keeps_state:
            _check_state(vector, limited)
        repeated = [] if faults else _repeats(vector, limited, made - imported)
    finally:
        if close_later is None:
            _close_all(closing)
        else:
            close_later += closing
    spec, remarks = vector.spec, remark_of(task_of(task))
    return {
        "env": spec.id,
        "spaces": vector.spaces.to_json(),
        "max_episode_steps": vector.max_episode_steps,
        "registered_max_episode_steps": spec.max_episode_steps,
        "reward_threshold": spec.reward_threshold if vector.has_own_rewards else None,
        "evaluation_vectorised": vector.simulator is not None,
        "keeps_state": vector.keeps_state,
        "make_seconds": made - imported,
        "first_step_seconds": tried - made,
        "step_seconds": step_seconds,
        "notes": [*(sentence for _, sentence in vector.take_notes()), *_unused(vector), *remarks, *faults, *repeated],
        "gymnasium": gymnasium.__version__,
    }


def _unused(vector: VectorTask) -> list[str]:
    """Return what the environment offers that no setting uses."""
    if not vector.offers_masks or not vector.spaces.action_sizes:
        return []
    return [f"{vector.spec.id} tells which actions are allowed (action_mask): task.action_mask = true would use it"]


def _close_all(made: list[Closable]) -> None:
    """Close what was made for a probe."""
    for vector in made:
        vector.close()


def _check_stages(task: Mapping[str, Any], vector: VectorTask, limited: Limited) -> None:
    """Make, reset and step the environment of each further stage; all show and take the same.

    Raises:
        TaskError: a stage's environment cannot be made, breaks its contract, or has other spaces.
    """
    count = len(task.get("stages") or ())
    for number in range(1, count):
        key = f"task.stages[{number}]"
        try:
            with limited("make"):
                vector.enter(0, number)
            _expect_spaces(vector, read_spaces(vector.environment(0), task_of(task))[0])
            _try_out(vector, limited)
        except EnvironmentFault as fault:
            raise TaskError(f"{key}: {_sentence(fault)}") from fault
        except TaskError as error:
            raise TaskError(f"{key}: {error}") from error
    if count:
        with limited("make"):
            vector.enter(0, 0)


def _expect_spaces(vector: VectorTask, found: Spaces) -> None:
    """See that spaces are those of the first stage."""
    if found.to_json() != vector.spaces.to_json():
        raise TaskError(f"got {_shapes(found)}, expected the spaces of the first stage: {_shapes(vector.spaces)}")


def _shapes(spaces: Spaces) -> str:
    """Shape and kind of what is shown and taken."""
    takes = spaces.actions if spaces.actions is not None else spaces.action_shape
    return f"observations {spaces.observation_shape} {spaces.observation_dtype} and actions {takes}"


def _check_native(task: Mapping[str, Any], closing: list[Closable], limited: Limited) -> None:
    """Make the vector that executors will step, begin its episodes and step it once."""
    try:
        with limited("make"):
            vector = training_task(task, 2)
        closing.append(vector)
        if isinstance(vector, NativeTask):
            with limited("reset"):
                obs = vector.begin(seed=_seed(0))
            rng = np.random.default_rng(0)
            actions = np.concatenate([random_action(vector.spaces, rng, one) for one in obs])
            with limited("first step"):
                step = vector.step(actions)
            for fault in step.faults:
                raise fault
    except EnvironmentFault as fault:
        raise TaskError(_sentence(fault)) from fault


def _check_state(vector: VectorTask, limited: Limited) -> None:
    """Take the state out of an environment that has been stepped, put it into a new one, and take it out again.

    Raises:
        TaskError: another one came out of it, or the environment cannot be made again.
    """
    known = vector.state_of(0)
    try:
        with limited("make"):
            vector.rebuild(0)
        vector.take_up(0, known)
    except EnvironmentFault as fault:
        raise TaskError(_sentence(fault)) from fault
    if odd := differences(known, vector.state_of(0)):
        raise TaskError(
            f"task.wrappers: {', '.join(odd)}: expected get_state() to give what set_state(state) was given, "
            "got another state"
        )
    vector.begins_with[0] = known


def _try_out(vector: VectorTask, limited: Limited) -> None:
    """One reset and one step that keep the contract; a fault now and then is not a reason to refuse a task."""
    first: EnvironmentFault | None = None
    for attempt in range(ATTEMPTS):
        try:
            with limited("reset"):
                obs = vector.reset(0, seed=_seed(attempt))
            action = random_action(vector.spaces, np.random.default_rng(attempt), obs)
            with limited("first step"):
                faults = vector.step(action).faults
            if not faults:
                return
            first = first or faults[0]
            with limited("make"):
                vector.rebuild(0)
        except EnvironmentFault as fault:
            first = first or fault
    assert first is not None  # noqa: S101 - the loop ends early or with a fault
    raise TaskError(_sentence(first)) from first


def _time_steps(vector: VectorTask, limited: Limited) -> tuple[float, list[str]]:
    """Step it with random actions: at most 64 steps or about 0.05 s, up to the first fault, which is told.

    Returns:
        Mean seconds of a step; and a sentence on the fault, if there was one: a run survives some, but not many.
    """
    rng = np.random.default_rng(0)
    seconds, steps, faults = 0.0, 0, list[str]()
    try:
        call = "reset"
        while steps < TIMED_STEPS and seconds < TIMED_SECONDS:
            if call == "reset":
                with limited("reset"):
                    obs = vector.reset(0, seed=_seed(ATTEMPTS + steps))
                call = "first step"
            action = random_action(vector.spaces, rng, obs)
            with limited(call):
                began = time.perf_counter()
                step = vector.step(action)
                seconds += time.perf_counter() - began
            steps, obs = steps + 1, step.next_obs[0]
            if step.faults:
                faults.append(_told(step.faults[0], steps - 1))
                break
            call = "reset" if step.ended else "step"
    except EnvironmentFault as fault:
        faults.append(_told(fault, steps))
    return seconds / max(1, steps), faults


def _repeats(vector: VectorTask, limited: Limited, make_seconds: float) -> list[str]:
    """Play the same seed and actions twice, and tell where something lives on from one episode to the next.

    At most 16 steps or about 0.05 s are played each time. Only where the answers differ is the environment made anew,
    twice: two new ones that agree have a state that lives on, two that do not are random beyond their seed.

    Returns:
        One sentence on the first difference, or nothing.
    """
    try:
        began = time.perf_counter()
        first = _played(vector, limited)
        if time.perf_counter() - began > SLOW_SECONDS:
            return []
        different = _difference(first, _played(vector, limited))
        if not different:
            return []
        told = f"the same seed and actions gave another {different} in a second episode"
        if vector.keeps_state:
            return [f"{told}, which began with the same state: {_LEFT_OUT}"]
        if make_seconds > SLOW_SECONDS:
            return [f"{told}: it is random beyond its seed, or {_LIVES_ON}"]
        fresh = []
        for _ in range(2):
            with limited("make"):
                vector.rebuild(0)
            fresh.append(_played(vector, limited))
        if _difference(*fresh):
            return [f"{told}, and in a new environment: {_NO_SEED_DECIDES}"]
    except EnvironmentFault as fault:
        return [f"in an episode that repeats another it had a fault: {_sentence(fault)}"]
    return [f"{told}, but not in a new environment: {_LIVES_ON}"]


_NO_SEED_DECIDES = "it is random beyond its seed, or a state outlives it; runs cannot be repeated"
_LIVES_ON = (
    "a state, such as running statistics or a counter, lives on between episodes of one environment; it differs "
    "between executors, tests and play, and is not saved: get_state() and set_state(state) of a wrapper would have it "
    "kept"
)
_LEFT_OUT = (
    "it is random beyond its seed, or get_state() leaves out something that lives on between episodes; runs cannot be "
    "repeated"
)


def _played(vector: VectorTask, limited: Limited) -> list[tuple[str, Array]]:
    """Return name and value of what one short episode answered, always of the same seed and actions."""
    rng, seconds = np.random.default_rng(0), 0.0
    with limited("reset"):
        obs = vector.reset(0, seed=_seed(0))
    answers = [("first observation", obs)]
    for number in range(1, REPEATED_STEPS + 1):
        action = random_action(vector.spaces, rng, obs)
        with limited("first step" if number == 1 else "step"):
            began = time.perf_counter()
            step = vector.step(action)
            seconds += time.perf_counter() - began
        for fault in step.faults:
            raise fault
        obs = step.next_obs[0]
        answers += [
            (f"observation at step {number}", obs),
            (f"reward at step {number}", np.asarray(step.raw_reward[0])),
            (f"end at step {number}", np.asarray(bool(step.ended))),
        ]
        if step.ended or seconds > TIMED_SECONDS:
            break
    return answers


def _difference(first: list[tuple[str, Array]], second: list[tuple[str, Array]]) -> str:
    """Return the name of the first answer that differs by more than rounding; empty if none does."""
    pairs = zip(first, second, strict=False)  # one may have been cut short by its time
    return next((name for (name, one), (_, two) in pairs if not np.allclose(one, two, rtol=1e-4, atol=1e-5)), "")


def _told(fault: EnvironmentFault, steps: int) -> str:
    return f"after {steps} steps with random actions it had a fault, of which a run survives some: {_sentence(fault)}"


def _seed(number: int) -> int:
    """A seed of 32 bits, as all are in training: an environment may take small ones alone."""
    return int(np.random.SeedSequence(number).generate_state(1)[0])


def _sentence(fault: EnvironmentFault) -> str:
    """Return what happened and, if the traceback tells, where in the environment's code."""
    places = [line.strip() for line in fault.trace.splitlines() if line.strip().startswith("File ")]
    return f"task.env: {fault.detail}" + (f" ({places[-1]})" if places else "")
