"""What the supervisor costs as executors are added: `python tests/benchmarks/scaling.py [--most 64]`.

1, 2, 4, ... executors play an environment that costs nothing, so that there are far more of them than cores, on
purpose: what grows then is the work of whoever looks after them. Each number has a run in a program of its own in each
round, and is compared with the one executor of the same round.
Counted is CPU time of the supervisor, which other programs disturb less than they disturb seconds, from the moment when
all executors have delivered three times. Every rollout is learned from, however old it is, and followed by a
publication: with the policy lag that PPO allows by itself most of those of many executors would be thrown away, and the
supervisor's work for a rollout would not be the same in all lines.

Columns, medians: rollouts delivered in a second; CPU of the supervisor per 1,000 rollouts, and its ratio to that of one
executor; the share of a core that was; rows learned from, of those the learner was given; memory of an executor that it
shares with nobody, and its part of all its memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

HERE = Path(__file__)
LIMIT_S = 120.0


class Nothing(gymnasium.Env[Any, Any]):
    """Shows zeros, rewards nothing, and ends by its limit."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.float32), 0.0, False, False, {}


def settings_for(executors: int, kind: str, folder: str) -> Any:
    from mlxe_async import load_settings

    file = Path(folder) / "scaling.toml"
    file.write_text(
        f"""
[run]
dir = "{folder}"
python_path = ["{HERE.parent}"]
[stop]
seconds = {LIMIT_S}
[task]
env = "scaling:Nothing"
max_episode_steps = 64
[schedule]
kind = "{kind}"
executors = {executors}
sync = "rollout"
rollout_steps = 64
{"max_policy_lag = 1000000" if kind == "oa" else ""}
[algorithm]
name = "ppo"
epochs = 1
minibatch = 64
common = [16]
policy = []
value = []
[memory]
block_rows = 64
lane_slots = 8
[evaluation]
enabled = false
[checkpoint]
interval_s = 0
"""
    )
    return load_settings(file, {})


async def one(executors: int, kind: str, rollouts: int) -> dict[str, float]:
    """Run with so many executors until so many rollouts are delivered, and what that cost."""
    from mlxe_async import Supervisor

    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(settings_for(executors, kind, folder))
        pids: set[int] = set()
        told: dict[str, float] = {}
        seen: dict[int, int] = {}
        rows = {"rows": 0, "dropped_rows": 0}

        def hear(line: dict[str, Any]) -> None:
            if line["event"] == "proc_start" and line["role"] == "executor":
                pids.add(line["pid"])
            if line.get("phase") == "learn" and "cpu" in told:
                for name in rows:
                    rows[name] += line[name]
            if line.get("phase") != "generate":
                return
            seen[line["idx"]] = seen.get(line["idx"], 0) + 1
            count = sum(seen.values()) if "cpu" not in told else 0
            if "cpu" not in told and len(seen) == executors and count >= 3 * executors:
                told.update(cpu=time.process_time(), wall=time.monotonic())
                seen.clear()
                seen[-1] = 0
            elif "cpu" in told:
                seen[-1] += 1
                if seen[-1] == rollouts:
                    told.update(cpu=time.process_time() - told["cpu"], wall=time.monotonic() - told["wall"])
                    told["memory"] = mean([shared_out(pid)[0] for pid in pids])
                    told["share"] = mean([shared_out(pid)[1] for pid in pids])
                    told["learned"] = rows["rows"] / max(1, sum(rows.values()))
                    supervisor.request_stop()

        supervisor.subscribe(hear)
        await supervisor.run()
    return told


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def shared_out(pid: int) -> tuple[float, float]:
    """MiB of a process that it shares with nobody, and its part of all its memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return (kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]) / 1024, kilobytes["Pss"] / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", default="oa")
    parser.add_argument("--one", type=int, help="only so many, as JSON")
    given = parser.parse_args()
    if given.one:
        import uvloop

        print(json.dumps(uvloop.run(one(given.one, given.kind, given.rollouts))))
        return
    counts = [2**power for power in range(given.most.bit_length())]
    found: dict[int, list[dict[str, float]]] = {executors: [] for executors in counts}
    for _ in range(given.rounds):
        for executors in counts:
            command = [sys.executable, str(HERE), "--one", str(executors), "--kind", given.kind]
            said = subprocess.run(
                [*command, "--rollouts", str(given.rollouts)], check=True, stdout=subprocess.PIPE, timeout=2 * LIMIT_S
            )
            found[executors].append(json.loads(said.stdout))
    print(
        f"{'executors':>9} {'rollouts/s':>11} {'ms/1,000':>9} {'ratio':>6} {'of a core':>10} {'learned':>8} "
        f"{'own MiB':>8} {'PSS':>6}  medians of {given.rounds}, {given.rollouts} rollouts each"
    )
    for executors, runs in found.items():
        middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        ratios = [run["cpu"] / first["cpu"] for run, first in zip(runs, found[1], strict=True)]
        print(
            f"{executors:9} {given.rollouts / middle['wall']:11,.0f} {1e6 * middle['cpu'] / given.rollouts:9.0f}"
            f" {statistics.median(ratios):6.2f} {100 * middle['cpu'] / middle['wall']:8.1f} %"
            f" {100 * middle['learned']:6.0f} % {middle['memory']:8.1f} {middle['share']:6.1f}"
        )


if __name__ == "__main__":
    main()
