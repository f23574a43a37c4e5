"""A closer look at a task and an algorithm that were found fit: conformance, and the cost of each part of a run.

It is part of a check alone. Nothing that is found here refuses a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.errors import EnvironmentFault
from mlxe_async.seeds import derive_seed
from mlxe_async.settings.forms import with_whole_numbers
from mlxe_async.settings.model import ROWS_PER_EXECUTOR, Settings
from mlxe_async.tasks.conformance import conformance
from mlxe_async.tasks.measuring import random_action
from mlxe_async.tasks.native import NativeTask
from mlxe_async.tasks.training import training_task
from mlxe_async.workers.kernels import choose_kernels
from mlxe_async.workers.rehearsal import Limited, batch_of, first_observations, made_up_rows, moments_of

if TYPE_CHECKING:
    from mlxe_async.algorithms import Algorithm
    from mlxe_async.rows import Array

CONFORMANCE_S, STEPPING_S, UPDATING_S = 1.5, 0.8, 1.2
MOST_STEPS, MOST_UPDATES = 400, 40
MOST_ROWS_BYTES = 1 << 27
LONG_S, PART = 2.0, 8
ASSUMED_STEPS = 128
"""Steps of a rollout that is an episode, where none ended."""


def survey(settings: Mapping[str, Any], task: Any, limited: Limited) -> dict[str, Any]:
    """Look at the environment, and measure a step, an answer of the policy and an update.

    Args:
        settings: all settings in plain JSON types, with all defaults.
        task: environments that were tried out already.
        limited: entered around each call that may hang, with its word.

    Returns:
        `conformance`, a list of `Finding`; `step_s` of one environment, `act_s` of an answer for all `envs` of an
        executor, `update_s`, `updates_per_row`; `rows` of the update that was measured; `accelerator` in words.
    """
    found = conformance(settings["task"], limited, CONFORMANCE_S)
    acts, learner, way = _made(settings, task.spaces, limited)
    schedule = settings["schedule"]
    envs, executors = schedule["envs_per_executor"], schedule["executors"]
    costs = _played(settings["task"], acts, envs, limited)
    episode, steps = costs.pop("episode"), schedule["rollout_steps"]
    if schedule["sync"] != "rollout":
        steps = min(episode or ASSUMED_STEPS, steps if schedule["sync"] == "either" else math.inf)
    learned = _learned(settings, (acts, learner, way), task, (int(steps), envs * executors), limited)
    return {
        "conformance": [list(one) for one in found],
        **costs,
        **learned,
        "envs": envs,
        "steps": int(steps),
        "accelerator": _accelerator(),
    }


def _made(settings: Mapping[str, Any], spaces: Any, limited: Limited) -> tuple[Algorithm, Algorithm, Any]:
    """The algorithm as executors and as the learner have it, and the way in which its updates are done."""
    from mlxe_async.algorithms import load_algorithm
    from mlxe_async.roles.learner import way_of

    device = settings["learner"]["device"]
    if device != "cpu":
        choose_kernels(Settings.model_validate(settings))
    kind: Any = load_algorithm(settings["algorithm"]["name"])
    table = with_whole_numbers(kind.Settings, settings["algorithm"])
    if "name" not in kind.Settings.model_fields:
        del table["name"]
    with limited("build"):
        own = kind.Settings.model_validate(table)
        acts = kind(own, spaces, seed=0, learns=False)
        learner = kind(own, spaces, seed=1, learns=True, device=device, threads=settings["learner"]["threads"] or 1)
        acts.load(learner.weights())
        how = settings["learner"]
        return acts, learner, way_of(learner, fast=how["fast"] is not False, products=how["products"])


def _played(task: Mapping[str, Any], acts: Any, envs: int, limited: Limited) -> dict[str, Any]:
    """Seconds of one environment's step, with its share of resets, and of an answer for all of them."""
    from mlxe_async.algorithms import Acting

    with limited("make"):
        vector = training_task(task, envs)
    rng, acting = np.random.default_rng(0), Acting().start(getattr(acts, "carry", ()), envs)
    stepping = answering = 0.0
    steps, ended = 0, 0
    try:
        began = time.perf_counter()
        with limited("reset"):
            if isinstance(vector, NativeTask):
                obs = vector.begin(seed=derive_seed(0, "survey", 0))
            else:
                obs = _begun(vector, range(envs), steps)
        first_s = time.perf_counter() - began
        acts.begin_rollout(rng)
        until = time.perf_counter() + STEPPING_S
        while steps < MOST_STEPS and (steps < 2 or time.perf_counter() < until):
            began = time.perf_counter()
            with limited("act"):
                acts.act(obs, rng, acting)
            answering += time.perf_counter() - began
            actions = np.concatenate([random_action(vector.spaces, rng, one) for one in obs])
            began = time.perf_counter()
            with limited("step"):
                step = vector.step(actions)
            obs = step.next_obs if step.start is None else step.start
            over = np.flatnonzero(step.terminated | step.truncated)
            if not isinstance(vector, NativeTask):
                over = np.flatnonzero(step.terminated | step.truncated | ~step.ok)
                for fault in step.faults:
                    raise fault
                if len(over):
                    with limited("reset"):
                        obs[over] = _begun(vector, over.tolist(), steps)
            stepping += time.perf_counter() - began
            acting.begin(over)
            acting.began = np.isin(np.arange(envs), over)
            steps, ended = steps + 1, ended + len(over)
    except EnvironmentFault as fault:
        if not steps:
            return {"step_s": 0.0, "act_s": 0.0, "reset_s": 0.0, "episode": 0, "fault": fault.detail}
    finally:
        vector.close()
    mean = round(steps * envs / ended) if ended else 0
    return {
        "step_s": stepping / steps / envs,
        "act_s": answering / steps,
        "reset_s": first_s / envs,
        "episode": mean,
    }


def _begun(vector: Any, which: Any, number: int) -> Array:
    return np.stack([vector.reset(index, derive_seed(0, "survey", number, index)) for index in which])


def _learned(
    settings: Mapping[str, Any], made: tuple[Any, Any, Any], task: Any, shape: tuple[int, int], limited: Limited
) -> dict[str, Any]:
    """Seconds of an update on made-up rows, as many as a run would learn from at once, and updates for each new row."""
    from mlxe_async.algorithms import Acting, Clock

    (acts, learner, way), observations = made, first_observations(task, limited)
    steps, streams = shape
    is_replay = learner.memory == "replay"
    if is_replay:
        steps = max(learner.window, 8)
        streams = max(1, -(-learner.batch_rows // steps))
        if getattr(learner, "moment_entries", 0):
            learner.set_moments(moments_of(observations, learner.moment_entries))
    elif learner.rows_per_update > 0:
        streams = max(1, learner.rows_per_update // steps)
    row_bytes = 2 * observations[0].nbytes + 64
    streams = max(1, min(streams, MOST_ROWS_BYTES // (row_bytes * steps)))

    def timed(side_by_side: int, at_least: int) -> float:
        """Seconds of an update of this number of segments; the first one compiles and allocates, and does not count."""
        with limited("act"):
            rows = made_up_rows(acts, observations, task.spaces, Acting(), steps=steps, streams=side_by_side)
            batch, seconds = batch_of(acts, rows), list[float]()
        until = time.perf_counter() + UPDATING_S
        while len(seconds) < MOST_UPDATES and (len(seconds) < at_least or time.perf_counter() < until):
            copied = {name: np.array(column) for name, column in batch.items()}
            began = time.perf_counter()
            with limited("update"):
                way.update(copied, Clock(env_steps=len(seconds), episodes=1, updates=len(seconds), version=1))
            seconds.append(time.perf_counter() - began)
        later = sorted(seconds[1:] or seconds)
        return later[len(later) // 2]

    # A long update is told by a part of it: it grows with its rows.
    part = max(1, streams // PART)
    update_s = 0.0 if is_replay or part == streams else timed(part, 2) * (streams / part)
    is_estimated = update_s > LONG_S
    if not is_estimated:
        update_s = timed(streams, 2)
    new = shape[0] * shape[1]
    capacity = settings["memory"]["capacity_rows"] or ROWS_PER_EXECUTOR * settings["schedule"]["executors"]
    if is_replay:
        due = learner.updates_due(rows=capacity, new_rows=new, new_segments=shape[1])
    else:
        due = new / (steps * streams)
    return {
        "update_s": update_s,
        "is_estimated": is_estimated,
        "updates_per_row": float(due) / new if math.isfinite(due) else 0.0,
        "rows": steps * streams,
        "is_fast": bool(getattr(way, "is_fast", False)),
    }


def _accelerator() -> str:
    """Return the GPU in words; empty if there is none that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return ""
    left, total = torch.cuda.mem_get_info()
    return f"{torch.cuda.get_device_name()}, {left / 2**30:.1f} of {total / 2**30:.1f} GiB left"
