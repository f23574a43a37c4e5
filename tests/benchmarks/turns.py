"""Two checkouts of this package by turns: `python tests/benchmarks/turns.py FOLDER [--tables fast,ppo,memory]`.

FOLDER is a checkout of an older commit (`git worktree add FOLDER COMMIT`). Both run the same command on settings files
of their own, old new new old, each time in fresh processes, so that what other programs do meanwhile meets both. Told
are the medians, their ratio (new / old) and the median of the ratios of each pair, which noise disturbs least.

Tables: fast (`settings/fast.toml`: ordinary and native environments, `oa` and `is`), ppo (the passes and minibatches of
stable-baselines3, as in `peers/compare.py`), memory (replay memories), updates (extra `atari`: SAC and TD3 on Pendulum
with layers of 256 and batches of 256, an update a step; DQN on Breakout's pictures), start (`settings/oa.toml`: seconds
from the command to the first step of an environment; less is better), gpu (extras `atari` and `mujoco`; a round takes
some six minutes: DQN on Breakout's pictures under `is`, and under `oa` with an executor for each core but three,
learned on `--device`; SAC on HalfCheetah there and on the CPU). Rates of updates and gpu are environment steps a
second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import compare

ROOT = Path(__file__).parents[2]
START = "settings/oa.toml"


def fast(vectorize: str, kind: str) -> list[str]:
    """Arguments of `run_ours.py`."""
    changed = (f"task.vectorize={vectorize}", f"schedule.kind={kind}")
    return ["--row", "one-pass", "--file", "settings/fast.toml", *(word for one in changed for word in ("--set", one))]


ONLY_OA = ("max_policy_lag", "max_owed_updates")
FAST = {f"fast, {one} {kind}": fast(one, kind) for one in ("single", "native") for kind in ("oa", "is")}


def stepping(file: str, start_s: int, changed: list[str]) -> tuple[str, list[str]]:
    """Script and arguments for a rate of environment steps, measured after `start_s` and the warm-up."""
    words = ["--row", "breakout-dqn", "--start", str(start_s), "--file", f"settings/{file}.toml"]
    return "run_ours.py", words + [word for one in changed for word in ("--set", one)]


def updates() -> dict[str, tuple[str, list[str]]]:
    """Rows of the table updates: an update for each step of Pendulum, and pictures as in `peers/compare.py`."""
    one = ["algorithm.layers=[256,256]", "algorithm.batch=256", "schedule.executors=1", "schedule.rollout_steps=8"]
    pictures = ["algorithm.start_rows=1000", "memory.capacity_rows=10_000"]
    return {
        "sac Pendulum": stepping("sac-pendulum", 5, one),
        "td3 Pendulum": stepping("td3-pendulum", 5, one),
        "breakout-dqn": stepping("breakout-dqn", 30, pictures),
    }


def gpu(device: str) -> dict[str, tuple[str, list[str]]]:
    """Rows of the table gpu; as few pictures are gathered before learning, and kept, as in `peers/compare.py`."""
    pictures = ["algorithm.start_rows=1000", "memory.capacity_rows=10_000"]
    many = [*pictures, "schedule.kind=oa", f"schedule.executors={max(1, (os.cpu_count() or 1) - 3)}"]
    cheetah = ["schedule.executors=1", "algorithm.start_rows=1000"]
    said = {
        f"breakout-dqn is, {device}": ("breakout-dqn", 30, device, pictures),
        f"breakout-dqn oa, {device}": ("breakout-dqn", 30, device, many),
        f"sac HalfCheetah, {device}": ("sac-halfcheetah", 10, device, cheetah),
        "sac HalfCheetah, cpu": ("sac-halfcheetah", 10, "cpu", cheetah),
    }
    return {
        name: stepping(file, start_s, [*changed, f"learner.device={there}", "learner.threads=1"])
        for name, (file, start_s, there, changed) in said.items()
    }


def rows(tables: list[str], device: str) -> dict[str, tuple[str, list[str]]]:
    """What is measured: name -> script and its arguments, settings files by their place in a checkout."""
    found: dict[str, tuple[str, list[str]]] = {}
    if "fast" in tables:
        found |= {name: ("run_ours.py", words) for name, words in FAST.items()}
    given = argparse.Namespace(ppo=Path("settings/ppo-cartpole.toml"), ppo_set=[])
    for row in ("ppo-defaults", "ppo-zoo"):
        for one in compare.contestants(row, given):
            if one.name == compare.OURS and "ppo" in tables:
                found[row] = (one.script, one.arguments)
    if "gpu" in tables:
        found |= gpu(device)
    if "updates" in tables:
        found |= updates()
    if "memory" in tables:
        found["memory"] = ("memory_ours.py", [])
    if "start" in tables:
        found["start, seconds"] = (START, [])
    return found


def measured(checkout: Path, script: str, words: list[str], seconds: float) -> dict[str, float]:
    """Run a script of a checkout. Returns rate by row.

    Raises:
        SystemExit: it failed; the end of what it said is told.
    """
    if script == START:
        return {"": started(checkout)}
    with tempfile.TemporaryDirectory() as folder:
        words = [_settings(checkout / word, words, folder) if word.endswith(".toml") else word for word in words]
        return _rates(checkout, script, words, seconds)


def _settings(file: Path, words: list[str], folder: str) -> str:
    """The settings file, under `is` without the keys that only `oa` has."""
    if "schedule.kind=is" not in words:
        return str(file)
    kept = [line for line in file.read_text().splitlines() if not line.startswith(ONLY_OA)]
    (copy := Path(folder) / file.name).write_text("\n".join(kept))
    return str(copy)


def environment(checkout: Path) -> dict[str, str]:
    """Environment variables of what runs in a checkout."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}


def started(checkout: Path) -> float:
    """Seconds from the command to the first step of an environment, by the run's own log.

    Raises:
        SystemExit: the run failed; the end of what it said is told.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mlxe_async", START, "--no-progress", "--set", f'run.dir="{folder}"']
        command += ["--set", "stop.env_steps=500"]
        began = time.monotonic_ns()
        done = subprocess.run(command, capture_output=True, text=True, cwd=checkout, env=environment(checkout))
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: expected exit code 0, got\n{(done.stderr or done.stdout)[-2000:]}")
        lines = map(json.loads, (Path(folder) / "latest/log.jsonl").read_text().splitlines())
        return (min(line["start_ns"] for line in lines if line.get("phase") == "generate") - began) / 1e9


def _rates(checkout: Path, script: str, words: list[str], seconds: float) -> dict[str, float]:
    warm_up = [] if script == "memory_ours.py" else ["--warm-up", "3"]
    command = [sys.executable, str(checkout / "tests/benchmarks/peers/scripts" / script), *words]
    done = subprocess.run(
        [*command, "--seconds", str(seconds), *warm_up],
        capture_output=True,
        text=True,
        cwd=checkout,  # `python -m` looks there first
        env=environment(checkout),
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if not lines:
        raise SystemExit(
            f"{' '.join(command)}: expected a line of figures, got\n{(done.stderr or done.stdout)[-2000:]}"
        )
    return {line.get("row", ""): line.get("steps_per_second", line.get("rows_per_second")) for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout of the older commit")
    parser.add_argument("--tables", default="fast,ppo,memory", help="which tables, with commas between")
    parser.add_argument("--rows", default="", help="only rows with this in their name")
    parser.add_argument("--device", default="cuda", help="of the table gpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="measured in each run")
    given = parser.parse_args()
    sides = {"old": given.old.resolve(), "new": ROOT}
    print("| row | old | new | new / old | median of the pairs' ratios (all) |\n|---|---:|---:|---:|---|", flush=True)
    for name, (script, words) in rows(given.tables.split(","), given.device).items():
        if given.rows not in name:
            continue
        seen: dict[str, dict[str, list[float]]] = {}
        for again in range(given.rounds):
            for side in ("old", "new") if again % 2 == 0 else ("new", "old"):
                for row, value in measured(sides[side], script, words, given.seconds).items():
                    row = row if script == "memory_ours.py" else name
                    seen.setdefault(row, {"old": [], "new": []})[side].append(value)
        for row, values in seen.items():
            old, new = (statistics.median(values[side]) for side in ("old", "new"))
            pairs = [two / one for one, two in zip(values["old"], values["new"], strict=True)]
            told = f"{statistics.median(pairs):.2f} ({', '.join(f'{pair:.2f}' for pair in pairs)})"
            digits = 3 if script == START else 0
            print(f"| {row} | {old:,.{digits}f} | {new:,.{digits}f} | {new / old:.2f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
