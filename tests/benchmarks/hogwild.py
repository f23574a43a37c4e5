"""Acting while the learner sleeps: `python tests/benchmarks/hogwild.py [--rounds 5] [--seconds 15]`.

A3C with `schedule.hogwild = true`: pulls and pushes never block acting. By turns a run as it is, and one whose learner
sleeps two seconds before each fiftieth update. Told of each is the 99th percentile of the latency of acting, over all
calls of both executors, from the log's event `times`; its buckets are an eighth to a quarter wide.
That no weights are torn meanwhile is tested: `pytest -m slow tests/ipc/test_weights.py` reads them a million times
while they are written.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kept import processor
from rate import ROOT, watched

HERE = Path(__file__).parent
WHO = {"as it is": "a2c", "a learner that sleeps": "sleeping:SleepingLearner"}


def acting_p99(name: str, seconds: float) -> tuple[float, int, int]:
    """Microseconds, calls that were measured, and pushes that gave way."""
    said = {
        "run.name": '"hogwild"',
        "run.python_path": json.dumps([str(HERE)]),
        "algorithm.name": f'"{name}"',
        "stop.solved": "false",
        "stop.env_steps": 10**12,
        "stop.seconds": seconds,
        "evaluation.enabled": "false",
        "checkpoint.interval_s": 0,
        "schedule.hogwild": "true",
        "schedule.max_policy_lag": 64,
        "learner.fast": "false",
    }
    with tempfile.TemporaryDirectory() as folder:
        lines, _ = watched(str(ROOT / "settings" / "a3c-cartpole.toml"), folder, seconds, said)
    last = {one["process"]: one for one in lines if one["event"] == "times" and "mlxe-exe" in one["process"]}
    counts: Counter[int] = Counter()
    for one in last.values():
        counts.update({int(bucket): number for bucket, number in one["histograms"]["acting"].items()})
    whole, below = sum(counts.values()), 0
    for bucket in sorted(counts):
        below += counts[bucket]
        if below >= 0.99 * whole:
            break
    pushes = [one for one in lines if one["event"] == "pushes"][-1]
    return bucket / 1000, whole, pushes["given_up"]


def main(words: Sequence[str]) -> int:
    """Measure by turns, tell and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15)
    asked = parser.parse_args(words)
    seen: dict[str, list[float]] = {who: [] for who in WHO}
    sys.stdout.write(f"{processor()}, {os.cpu_count()} cores; {asked.rounds} rounds of {asked.seconds:g} s\n\n")
    for _ in range(asked.rounds):
        for who, name in WHO.items():
            p99, calls, gave_way = acting_p99(name, asked.seconds)
            seen[who].append(p99)
            told = f"{who}: p99 of acting {p99:,.0f} us, {calls:,} calls, {gave_way:,} pushes gave way\n"
            sys.stdout.write(told)
            sys.stdout.flush()
    plain, slept = seen.values()
    middle = statistics.median(slept)
    is_within = middle <= max(plain)
    sys.stdout.write(
        f"median with a sleeping learner {middle:,.0f} us, without {statistics.median(plain):,.0f} us "
        f"({min(plain):,.0f} to {max(plain):,.0f}): {'within or below' if is_within else 'above'} the spread\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
