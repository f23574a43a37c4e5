"""Checks a whole checkpoint key by key before a run goes on from it, and before anything is started.

Its checksums say that nothing was lost or mixed up, not that what was written makes sense: another program, or a
person, may have changed it and made the sums anew. So each key of what the supervisor told of itself is checked, and
the arrays that belong to it. What only a role can judge is judged there, when it takes up its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from mlxe_async.errors import RunFailed
from mlxe_async.ipc.shared.delayed import DELAYED
from mlxe_async.memory.shape import PLAN_SLOTS
from mlxe_async.rows import Array
from mlxe_async.storage.array_files import read_arrays
from mlxe_async.storage.checkpoints import MANIFEST, Unfit, Whole, check_weights
from mlxe_async.storage.json_checks import (
    anything,
    by_name,
    by_number,
    count,
    duration,
    flag,
    integer,
    list_of,
    maybe,
    number,
    one_of,
    shown,
    table,
    text,
)
from mlxe_async.supervisor.plan.budget import Counters

OWN = "supervisor"
SUFFIX = ".safetensors"
NEEDED = (OWN, "memorizer", "learner")

_COUNTERS = table({}, {field.name: count for field in fields(Counters)}, is_closed=True)
# Of a plan, in a replay memory or in one of rollouts.
_PLACES = {"slot": one_of(*range(PLAN_SLOTS)), "number": count, "slots": list_of(count), "orders": list_of(count)}
_PUBLISHED = {
    "episodes_started": count,
    "env_steps": count,
    "updates": count,
    "seconds": duration,
    "cpu_seconds": duration,
    "published_ns": integer,
}
_STATE = table(
    {
        "counters": _COUNTERS,
        "budget": table({"seconds": duration, "solved_at_step": maybe(count)}),
        "delivered": list_of(count),
        "returns": by_number(list_of(number)),
        "memorizer": table(
            {
                "owed": count,
                "held": count,
                "unseen": count,
                "rows_since": count,
                "calls": count,
                "used": maybe(table({"updates": count, "rows": count}, _PLACES)),
            }
        ),
        "executors": list_of(
            table({"rollouts": count, "rows": count, "deaths": count, "died_with": count, "epoch": count, "busy": flag})
        ),
        "memory_shape": by_name(anything),
        "seconds": duration,
        "cpu_seconds": by_name(duration),
        "solved_at": maybe(table({"version": count, **_PUBLISHED}, is_closed=True)),
        "evaluator": table(
            {
                "tests": count,
                "last_episode": count,
                "last_version": count,
                "is_solved": flag,
                "streak": list_of(count),
            },
            {"last_steps": count, "streak_length": maybe(count)},
        ),
        "publications": by_number(table(_PUBLISHED)),
        "saver": table(
            {},
            {"version": count, "score": number, "counters": _COUNTERS, "saved": count, "wrappers": text},
            is_closed=True,
        ),
        "waiting": list_of(list_of(table({"epoch": count, "count": count}))),
    },
    {
        "log": table({"next_seq": count, "clock_ns": integer}),
        "promoter": table({"result": maybe(number), "since": count}),
    },
)
_BEST = ("version", "score", "counters", "saved")


def check_whole(found: Whole, envs: int) -> None:
    """See that a run can go on from a checkpoint, as far as that can be told without its roles.

    Args:
        found: the checkpoint.
        envs: environments of each executor of the run.

    Raises:
        Misfit: a value is not what it must be; the message names file and key.
        Unfit: so is an array, or a file is missing.
        OSError: a file cannot be read.
    """
    check_weights(found)
    place = f"{MANIFEST}: facts.state"
    table({"state": _STATE})(f"{MANIFEST}: facts", found.facts)
    state = found.facts["state"]
    executors = len(state["executors"])
    for name in NEEDED:
        if f"{name}{SUFFIX}" not in found.files:
            raise Unfit(f"{MANIFEST}: files: got no {name}{SUFFIX}, expected one")
    if len(state["waiting"]) != executors:
        lanes = len(state["waiting"])
        raise Unfit(f"{place}.waiting: got {lanes} lanes, expected one for each of {executors} executors")
    if any(index >= executors for index in state["delivered"]):
        raise Unfit(f"{place}.delivered: got {state['delivered']}, expected numbers of {executors} executors")
    if state["saver"] and set(state["saver"]) - {"wrappers"} != set(_BEST):
        raise Unfit(f"{place}.saver: got {', '.join(state['saver'])}, expected {', '.join(_BEST)}, or nothing")
    try:
        _check_own(found, state, executors, envs)
        _check_waiting(found, state)
    except RunFailed as error:  # it says which file is no safetensors
        raise Unfit(str(error)) from error


def _check_own(found: Whole, state: Mapping[str, Any], executors: int, envs: int) -> None:
    file = f"{OWN}{SUFFIX}"
    arrays = read_arrays(found.path / file)
    weights = sum(tensor.size for tensor in found.tensors.values())
    for index in range(executors):
        begun = _expected(arrays, file, f"executor-{index}.begun", "iu", (envs,))
        if begun.size and not 0 <= begun.min() <= begun.max() < 2**53:
            raise Unfit(f"{file}: executor-{index}.begun: got {begun.tolist()[:8]}, expected numbers of episodes")
        _expected(arrays, file, f"executor-{index}.running", "b", (envs,))
    flat = [name for name in arrays if name.startswith(("passed.", DELAYED))] + ["best"] * bool(state["saver"])
    for name in flat:
        version = name.removeprefix("passed.").removeprefix(DELAYED)
        if version != "best" and not (version.isascii() and version.isdigit()):
            raise Unfit(f"{file}: {shown(name)}: expected the number of a version behind the dot")
        if not np.isfinite(_expected(arrays, file, name, "f", (weights,))).all():
            raise Unfit(f"{file}: {shown(name)}: got numbers that are not finite, expected finite ones")


def _check_waiting(found: Whole, state: Mapping[str, Any]) -> None:
    file = f"memorizer{SUFFIX}"
    arrays = read_arrays(found.path / file, lambda name: name.startswith("waiting."))
    for lane, about in enumerate(state["waiting"]):
        blocks = arrays.get(f"waiting.{lane}")
        if about and (blocks is None or blocks.ndim != 2 or blocks.dtype != np.uint8 or len(blocks) != len(about)):
            got = "nothing" if blocks is None else f"{blocks.dtype} of shape {blocks.shape}"
            raise Unfit(
                f"{file}: waiting.{lane}: got {got}, expected {len(about)} blocks of bytes, as {MANIFEST} tells"
            )


def _expected(arrays: Mapping[str, Array], file: str, name: str, kinds: str, shape: tuple[int, ...]) -> Array:
    array = arrays.get(name)
    if array is None or array.dtype.kind not in kinds or array.shape != shape:
        got = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
        words = {"iu": "whole numbers", "b": "truth values", "f": "floats"}[kinds]
        raise Unfit(f"{file}: {shown(name)}: got {got}, expected {words} of shape {shape}")
    return array
