"""Rows per second of single environments, native vectors and EnvPool: `python tests/benchmarks/pools.py [seconds]`.

By turns, three times each, and medians: an executor's environments alone, with random actions, and a run of one
executor whose rows are each learned from once. Steps that only reset an environment are no rows.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy starts its pools

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from kept import processor
from rate import ROOT, run

from mlxe_async.cores import usable_cores
from mlxe_async.rows import Spaces
from mlxe_async.tasks.native import NativeTask
from mlxe_async.tasks.training import training_task

TASKS = {
    "CartPole-v1": ("fast.toml", 64, 4096, ("single", "native", "envpool")),
    "Pendulum-v1": ("fast.toml", 64, 4096, ("single", "envpool")),
    "HalfCheetah-v5": ("fast.toml", 16, 512, ("single", "envpool")),
    "ALE/Pong-v5": ("pong.toml", 8, 128, ("single", "native", "envpool")),
}
"""Environment -> settings file, how many side by side, rows of a rollout, of which seconds see many, and ways."""


def drawn(spaces: Spaces, count: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if spaces.actions is not None:
        return rng.integers(0, spaces.actions, count)
    return rng.uniform(spaces.action_low, spaces.action_high, (count, *spaces.action_shape)).astype(np.float32)


def alone(env: str, count: int, mode: str, seconds: float) -> float:
    """Rows per second of one executor's environments with random actions."""
    task = training_task({"env": env, "vectorize": mode}, count, threads=usable_cores())
    rng = np.random.default_rng(0)
    actions = [drawn(task.spaces, count, rng) for _ in range(100)]
    if isinstance(task, NativeTask):
        task.begin(0)
    else:
        for index in range(count):
            task.reset(index, index)
    rows, steps, began = 0, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step = task.step(actions[steps % 100])
        steps, rows = steps + 1, rows + int(step.ok.sum())
        for index in step.ended:
            task.reset(index, steps)
    spent = time.perf_counter() - began
    task.close()
    return rows / spent


def learning(env: str, count: int, mode: str, seconds: float) -> float:
    """Rows per second that a run of one executor learned from."""
    file, _, rows, _ = TASKS[env]
    said = {"task.env": f'"{env}"', "task.vectorize": f'"{mode}"', "schedule.executors": 1}
    sizes = {"schedule.envs_per_executor": count, "schedule.rollout_steps": rows // count}
    return float(run(str(ROOT / "settings" / file), seconds, **said, **sizes)["rate"])


def turns(only: str) -> Iterator[tuple[str, Callable[..., float], str, int, str]]:
    for env, (_, count, _, modes) in TASKS.items():
        for measure in (alone, learning):
            for mode in modes:
                if only in env:
                    yield measure.__name__, measure, env, count, mode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--only", default="", metavar="ID", help="environments whose id contains this")
    given = parser.parse_args()
    print(f"{processor()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f}")
    found: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(3):
        for name, measure, env, count, mode in turns(given.only):
            found.setdefault((env, name, mode), []).append(measure(env, count, mode, given.seconds))
            print(env, name, mode, f"{found[env, name, mode][-1]:,.0f}", file=sys.stderr)
    for (env, name, mode), rates in found.items():
        told = ", ".join(f"{rate:,.0f}" for rate in rates)
        single = statistics.median(found[env, name, "single"])
        times = statistics.median(rates) / single
        print(f"{env:16} {name:9} {mode:8} {statistics.median(rates):12,.0f} rows/s {times:6.2f} of single  ({told})")


if __name__ == "__main__":
    main()
