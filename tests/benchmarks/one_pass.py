"""Rates of those that learn once from each row: `python tests/benchmarks/one_pass.py [--seconds 8] [--rounds 3]`.

PPO with one epoch, A2C and IMPALA learn CartPole in the ordinary environments of one task, under `is` and `oa`, with
the same networks and rollouts. They take turns, so that what other programs do meanwhile meets all of them. Told are
rows learned from per second, the median of the rounds, and the median of the ratios to PPO's of the same round.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rate import watched

COMMON: dict[str, Any] = {
    "algorithm.policy": [64, 64],
    "algorithm.value": [64, 64],
    "schedule.executors": 2,
    "schedule.envs_per_executor": 8,
    "schedule.rollout_steps": 64,
    "evaluation.enabled": "false",
    "stop.solved": "false",
    "checkpoint.interval_s": 0,
}
OWN: dict[str, dict[str, Any]] = {"ppo": {"epochs": 1, "minibatch": 1024}, "a2c": {}, "impala": {}}
SOUND = {"is": ("ppo", "a2c", "impala"), "oa": ("ppo", "impala")}  # A2C ignores that rows are old
HEAD = """[run]
[stop]
[task]
env = "CartPole-v1"
[schedule]
kind = "is"
[algorithm]
name = "{name}"
[evaluation]
[checkpoint]
"""


def rate(name: str, kind: str, seconds: float) -> float:
    """Rows per second that one run learned from, between its first update and its last."""
    own = {f"algorithm.{key}": value for key, value in OWN[name].items()}
    with tempfile.TemporaryDirectory(prefix="mlxe-one-pass-") as folder:
        file = Path(folder) / f"{name}.toml"
        file.write_text(HEAD.format(name=name))
        said = {**COMMON, **own, "schedule.kind": kind, "stop.seconds": seconds, "stop.env_steps": 10**12}
        lines, _ = watched(str(file), folder, seconds, said)
    updates = [line for line in lines if line.get("phase") == "learn" and line["updates"]]
    ends = [line["start_ns"] / 1e9 + line["seconds"] for line in updates]
    if len(updates) < 3:
        raise SystemExit(f"{name} under {kind}: only {len(updates)} updates in {seconds:g} s; let it run for longer")
    return float(sum(line["rows"] for line in updates[1:]) / (ends[-1] - ends[0]))


def main(words: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3, help="how many turns each has")
    parser.add_argument("--json", action="store_true", help="rates of all rounds instead of the table")
    asked = parser.parse_args(words)
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(asked.rounds):
        for kind, names in SOUND.items():
            for name in names[:: 1 if number % 2 == 0 else -1]:
                found.setdefault(kind, {}).setdefault(name, []).append(rate(name, kind, asked.seconds))
    if asked.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    sys.stdout.write("| schedule | algorithm | rows/s | of PPO's |\n|---|---|---:|---:|\n")
    for kind, rates in found.items():
        for name in SOUND[kind]:
            pairs = [ours / theirs for ours, theirs in zip(rates[name], rates["ppo"], strict=True)]
            said = f"{statistics.median(rates[name]):,.0f} | {statistics.median(pairs):.2f}"
            sys.stdout.write(f"| {kind} | {name} | {said} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
