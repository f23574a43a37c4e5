"""This package, by its command line: `run_ours.py --row NAME --file SETTINGS [--set KEY=VALUE ...]`.

Rates are of the rows that entered an update, each once, where rows are replayed (breakout-dqn) of agent steps; from the
end of the first update after the warm-up to the end of the last one, by the run's own log. Solving is timed from the
log too: from the first step of an environment to the publication of the first version whose test passed; its test runs
beside the learning and is part of that time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring

import mlxe_async

COMMON = {"stop.env_steps": 10**12, "checkpoint.interval_s": 0}
RATE = {"stop.solved": "false", "evaluation.enabled": "false"}
SOLVE = {
    "stop.solved": "true", "evaluation.enabled": "true",
    "evaluation.rule": '"mean_return"', "evaluation.threshold": 475,
    "evaluation.episodes": 20, "evaluation.max_episode_steps": 500, "evaluation.screen_steps": 500,
    "evaluation.passes": 1,
}  # fmt: skip
Lines = list[dict[str, Any]]


def run(file: str, overrides: dict[str, Any], limit: float) -> tuple[Lines, dict[str, Any], dict[str, float]]:
    """Run the command. Returns the log's lines, the last status, and when it began and ended (monotonic seconds)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mlxe_async", file, "--no-progress", "--set", f'run.dir="{folder}"']
        for key, value in overrides.items():
            command += ["--set", f"{key}={value}"]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        ended = time.monotonic()
        if done.returncode:
            said = (done.stdout + done.stderr)[-3000:]
            raise SystemExit(f"{' '.join(command)}: expected exit code 0, got {done.returncode}\n{said}")
        with (Path(folder) / "latest" / "log.jsonl").open() as log:
            lines = [json.loads(line) for line in log]
        status = json.loads((Path(folder) / "latest" / "status.json").read_text())
    return lines, status, {"began": began, "ended": ended}


def rate(lines: Lines, status: dict[str, Any], warm_up: float) -> dict[str, Any]:
    """Rows learned from per second, the lag of these rows, and the CPU time per row.

    Raises:
        RuntimeError: fewer than two updates ended after the warm-up.
    """
    updates = [line for line in lines if line.get("phase") == "learn" and line["updates"]]
    ends = [line["start_ns"] / 1e9 + line["seconds"] for line in updates]
    first = next((k for k, end in enumerate(ends) if end - ends[0] >= warm_up), len(ends))
    counted = updates[first + 1 :]
    if not counted:
        raise RuntimeError(
            f"measuring a rate: expected updates after {warm_up} s of warm-up, got {len(updates)} in all"
        )
    wall, rows = ends[-1] - ends[first], sum(line["rows"] for line in counted)
    # The CPU time is that of the whole run but for imports: spread over all its rows.
    cpu = sum(used for name, used in status["cpu_seconds"].items() if name != "mlxe-nursery")
    share = cpu / max(1, sum(line["rows"] for line in updates))
    return {
        "steps_per_second": rows / wall,
        "steps": rows,
        "seconds": wall,
        "updates": len(counted),
        "cpu_seconds": cpu,
        "cpu_us_per_step": 1e6 * share,
        "lag_mean": sum(line["lag_mean"] * line["rows"] for line in counted) / rows,
        "lag_max": max(line["lag_max"] for line in counted),
        "dropped_rows": sum(line["dropped_rows"] or 0 for line in updates),
    }


def stepping(lines: Lines, status: dict[str, Any], warm_up: float) -> dict[str, Any]:
    """Agent steps per second where rows are replayed: those made between two updates, the first after the warm-up.

    Raises:
        RuntimeError: fewer than two learning phases ended after the warm-up.
    """
    learned = [line for line in lines if line.get("phase") == "learn" and line["updates"]]
    ends = [line["start_ns"] / 1e9 + line["seconds"] for line in learned]
    first = next((k for k, end in enumerate(ends) if end - ends[0] >= warm_up), len(ends))
    if first >= len(ends) - 1:
        raise RuntimeError(f"measuring a rate: expected updates after {warm_up} s of warm-up, got {len(ends)} phases")
    wall, steps = ends[-1] - ends[first], learned[-1]["env_steps"] - learned[first]["env_steps"]
    cpu = sum(used for name, used in status["cpu_seconds"].items() if name != "mlxe-nursery")
    updates = sum(line["updates"] for line in learned[first + 1 :])
    return {
        "steps_per_second": steps / wall,
        "steps": steps,
        "seconds": wall,
        "updates": updates,
        "steps_per_update": steps / max(1, updates),
        "cpu_seconds": cpu,
        "cpu_us_per_step": 1e6 * cpu / max(1, learned[-1]["env_steps"]),
    }


def solving(lines: Lines, status: dict[str, Any], when: dict[str, float]) -> dict[str, Any]:
    """Seconds of learning until the first version that passed, and from the command to that being known."""
    passed = [line for line in lines if line["event"] == "evaluation" and line["passed"]]
    played = [line["start_ns"] for line in lines if line.get("phase") == "generate"]
    found: dict[str, Any] = {
        "solved": bool(passed),
        "cpu_seconds": sum(status["cpu_seconds"].values()),
        "wall_seconds": when["ended"] - when["began"],
    }
    if passed and played:
        published = next(
            line for line in lines if line["event"] == "weights" and line["version"] == passed[0]["version"]
        )
        found["learning_seconds"] = (published["mono_ns"] - min(played)) / 1e9
        found["command_to_solved_seconds"] = passed[0]["mono_ns"] / 1e9 - when["began"]
        found["learning_steps"] = published["env_steps"]
        found["mean_return"] = passed[0]["return_mean"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as the command takes it")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument(
        "--start", type=float, default=6.0, help="seconds that starting may take, beside those measured"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    own = dict(pair.split("=", 1) for pair in given.set)
    said = " ".join([Path(given.file).name, *given.set])
    more = {"row": given.row, "config": Path(given.file).stem, "seed": given.seed}
    if given.row == "solve":
        overrides = {**COMMON, **SOLVE, "stop.seconds": 300, "run.seed": given.seed, **own}
        found = solving(*run(given.file, overrides, 600))
    else:
        seconds = given.start + given.warm_up + given.seconds
        overrides = {**COMMON, **RATE, "stop.seconds": seconds, "run.seed": given.seed, **own}
        lines, status, _ = run(given.file, overrides, 20 * seconds + 300)
        found = (stepping if given.row == "breakout-dqn" else rate)(lines, status, given.warm_up)
    line = {"peer": "mlxe_async", "version": mlxe_async.__version__, "configuration": said, "env": measuring.ENV}
    more |= {"env": "ALE/Breakout-v5"} if given.row == "breakout-dqn" else {}
    sys.stdout.write("\n" + json.dumps({**line, **more, **found}) + "\n")


if __name__ == "__main__":
    main()
