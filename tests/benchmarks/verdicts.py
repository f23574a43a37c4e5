"""Whether the verdict names a planted bottleneck, and predicts: `python tests/benchmarks/verdicts.py [ROW ...]`.

Each row is a short run whose limit was planted. Its verdict is printed beside what was planted, and where it advises a
change with a prediction, a second run with that change says what it really brought, as rows per second. What a verdict
predicts of an executor that is as fast as the others is measured with the plant taken out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxe_async import Supervisor, load_settings, read_log

HERE = Path(__file__).parent
SECONDS = 8.0
# It hardly learns: episodes stay as long as they are, and so does what a row costs.
PPO = {"name": "ppo", "epochs": 1, "minibatch": 256, "policy": [64], "value": [64], "learning_rate": 1e-9}
IS = {"kind": "is", "executors": 2, "envs_per_executor": 4, "sync": "rollout", "rollout_steps": 64}
OA = {**IS, "kind": "oa"}
Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Planted:
    """A run.

    Args:
        limits: verdicts that are right.
        task: table `[task]`.
        schedule: table `[schedule]`.
        algorithm: fields besides those of `PPO`.
        others: tables besides.
        neighbours: busy processes beside the run.
        disk_s: seconds that it takes to have data on the disk.
        mended: table `[task]` without what was planted, for a prediction that is of no settings.
    """

    limits: tuple[str, ...]
    task: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=lambda: IS)
    algorithm: dict[str, Any] = field(default_factory=dict)
    others: Tables = field(default_factory=dict)
    neighbours: int = 0
    disk_s: float = 0.0
    mended: dict[str, Any] = field(default_factory=dict)


def wrapped(name: str, **given: float) -> dict[str, Any]:
    """The table of a task with a wrapper of `planted`."""
    return {"wrappers": [{"entry": f"planted:{name}", "kwargs": given}]}


ROWS = {
    "environments that sleep, is": Planted(("executors",), wrapped("Sleeps")),
    "environments that sleep, oa": Planted(("executors",), wrapped("Sleeps"), OA),
    "environments that compute, one executor": Planted(("executors",), wrapped("Burns"), {**IS, "executors": 1}),
    "resets that sleep": Planted(("executors",), wrapped("SlowResets")),
    "one straggler": Planted(("straggler",), wrapped("Lags"), mended=wrapped("Sleeps", seconds=0.0005)),
    "a straggler that slows down": Planted(("straggler",), wrapped("Slows"), mended=wrapped("Sleeps", seconds=0.0005)),
    "forty epochs, is": Planted(("learner",), algorithm={"epochs": 40, "minibatch": 64}),
    "forty epochs, oa": Planted(("learner",), {}, OA, {"epochs": 40, "minibatch": 64}),
    "tiny minibatches": Planted(("learner",), algorithm={"minibatch": 4}),
    "a slow disk": Planted(
        ("disk",),
        wrapped("Burns"),
        {**IS, "executors": 1},
        others={"checkpoint": {"interval_steps": 256}},
        disk_s=0.5,
    ),
    "rollouts of one step": Planted(("rounds",), {}, {**IS, "rollout_steps": 1}),
    "a large network, one environment each": Planted(
        ("executors", "learner"), {}, {**IS, "envs_per_executor": 1, "rollout_steps": 256}, {"policy": [1024, 1024]}
    ),
    "eight executors that compute": Planted(("cores",), wrapped("Burns"), {**IS, "executors": 8}),
    "three busy neighbours": Planted(("cores",), wrapped("Burns"), neighbours=3),
    "tests that are waited for": Planted(
        ("evaluator",),
        others={"evaluation": {"enabled": True, "rule": "mean_return", "episodes": 200, "interval_steps": 1}},
    ),
    "all in one process": Planted(("executors",), wrapped("Burns"), {**IS, "kind": "serial"}),
}


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Other programs that want a core each."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


@contextlib.contextmanager
def slow_disk(seconds: float) -> Iterator[None]:
    """Data are on the disk that much later: this process is the one that saves."""
    fsync = os.fsync

    def slowly(descriptor: int) -> None:
        time.sleep(seconds)
        fsync(descriptor)

    with unittest.mock.patch("os.fsync", slowly) if seconds else contextlib.nullcontext():
        yield


def run(planted: Planted, changes: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Rows per second between the first update and the last, and the last verdict."""
    tables: Tables = {
        "run": {"python_path": [str(HERE)]},
        "stop": {"seconds": SECONDS, "solved": False, "env_steps": 10**9},
        "task": {"env": "CartPole-v1", "max_episode_steps": 500, **planted.task},
        "schedule": dict(planted.schedule),
        "algorithm": {**PPO, **planted.algorithm} if planted.algorithm.get("name") is None else dict(planted.algorithm),
        "evaluation": {"enabled": False},
        "checkpoint": {"interval_s": 0},
    }
    tables |= {name: dict(table) for name, table in planted.others.items()}
    for key, value in changes.items():
        table, _, name = key.partition(".")
        tables[table][name] = value
    with tempfile.TemporaryDirectory() as folder, neighbours(planted.neighbours), slow_disk(planted.disk_s):
        result = Supervisor(load_settings(tables), run_dir=folder).run_sync()
        lines = list(read_log(result.run_dir))
    learned = [line for line in lines if line["event"] == "phase" and line["phase"] == "learn" and line["updates"]]
    first, last = learned[0], learned[-1]
    rate = (last["env_steps"] - first["env_steps"]) / ((last["mono_ns"] - first["mono_ns"]) / 1e9)
    return rate, [line for line in lines if line["event"] == "bottleneck"][-1]


def main() -> None:
    rows = {name: one for name, one in ROWS.items() if not sys.argv[1:] or any(word in name for word in sys.argv[1:])}
    right = predicted = near = 0
    for name, planted in rows.items():
        rate, found = run(planted, {})
        is_right = found["slowest"] in planted.limits
        right += is_right
        print(f"{'right' if is_right else 'WRONG'}  {name}: {found['slowest']}; {found['advice']}", flush=True)
        if found["predicted"] and (found["change"] or planted.mended):
            mended = planted if found["change"] else dataclasses.replace(planted, task=planted.mended)
            after, _ = run(mended, found["change"])
            predicted += 1
            near += (is_near := abs(after / rate / found["predicted"] - 1) <= 0.25)
            said = f"predicted {found['predicted']:.2f} times, measured {after / rate:.2f}"
            print(f"       {said}{'' if is_near else ': MORE THAN 25 % APART'}", flush=True)
    print(f"{right} of {len(rows)} named; {near} of {predicted} predictions within 25 %")


if __name__ == "__main__":
    main()
