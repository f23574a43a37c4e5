"""What a push costs: `python tests/benchmarks/pushes.py [--workers 14] [--seconds 20] [--rounds 5]`.

First the way of a gradient from a worker to the learner, for several sizes: remembered by the worker, written into its
place with a checksum, read and checked by the learner. CPU microseconds, the least of seven times a thousand pushes, in
one process. What the worker's and the learner's update cost is not in it.

Then runs of A3C with so many workers, most of which wait for a slow environment: the supervisor's CPU seconds in a
second, and for each push. The median run is told, and the least and most: a core is not always equally fast.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from kept import processor
from rate import ROOT, TICKS, watched

from mlxe_async.ipc.shared.pushes import PushPlaces, least_bytes
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.maths import together
from mlxe_async.roles.pushing import Recorder

SIZES = (10_000, 100_000, 1_000_000)
PUSHES, TIMES = 1000, 7
HERE = Path(__file__).parent
SLEEPS = '[{entry = "planted:Sleeps", kwargs = {seconds = 0.02}}]'


def way_us(nbytes: int) -> float:
    """CPU microseconds of one push of a gradient of so many bytes."""
    gradient, rows = np.ones(nbytes // 4, np.float32), {"obs": np.zeros((5, 1, 4), np.float32)}
    best = float("inf")
    with Segment.create("push", least_bytes(1), grows=True) as segment:
        worker, learner = PushPlaces(segment), PushPlaces(segment)
        pushes = PUSHES if nbytes <= 200_000 else PUSHES // 10
        for again in range(TIMES):
            began = time.process_time()
            for number in range(again * pushes + 1, (again + 1) * pushes + 1):
                recorder = Recorder()
                recorder.give(together.GRADIENT, gradient)()
                worker.write(0, number, (recorder.entries, rows))
                learner.read(0, number)
            best = min(best, (time.process_time() - began) / pushes)
    return 1e6 * best


def supervised(workers: int, seconds: float) -> tuple[float, float, float]:
    """Pushes in a second, CPU seconds of the supervisor in a second, and for each push, of a run."""
    said = {
        "run.name": '"pushes"',
        "run.python_path": json.dumps([str(HERE)]),
        "stop.solved": "false",
        "stop.env_steps": 10**12,
        "stop.seconds": seconds,
        "evaluation.enabled": "false",
        "checkpoint.interval_s": 0,
        "schedule.executors": workers,
        "schedule.envs_per_executor": 1,
        "schedule.rollout_steps": 20,
        "schedule.max_policy_lag": 4 * workers,
        "task.wrappers": SLEEPS,
    }
    with tempfile.TemporaryDirectory() as folder:
        lines, samples = watched(str(ROOT / "settings" / "a3c-cartpole.toml"), folder, seconds, said)
    (since, _, first), (until, _, last) = samples[len(samples) // 4], samples[-1]
    began = [one["start_ns"] / 1e9 for one in lines if one.get("phase") == "learn"]
    pushes = sum(since < one <= until for one in began)
    spent = last["mlxe-sup"] - first["mlxe-sup"]
    return pushes / (until - since), spent / (until - since), spent / max(1, pushes)


def main(words: Sequence[str]) -> int:
    """Measure, tell and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(words)
    lines = [f"{processor()}, {os.cpu_count()} cores"]
    lines += [f"a push of {size // 1000:,} KB: {way_us(size):.0f} us of CPU" for size in SIZES]
    found = [supervised(asked.workers, asked.seconds) for _ in range(asked.rounds)]
    rate, share, each = (statistics.median(values) for values in zip(*found, strict=True))
    shares = [share for _, share, _ in found]
    lines.append(
        f"{asked.workers} workers, {asked.rounds} runs of {asked.seconds:g} s: {rate:.0f} pushes/s, the supervisor "
        f"takes {share:.1%} of a core ({min(shares):.1%} to {max(shares):.1%}), {1e6 * each:.0f} us for each push (its "
        f"clock ticks {TICKS} times a second)"
    )
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
