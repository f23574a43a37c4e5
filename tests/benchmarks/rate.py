"""Environment steps per second that were learned from: `python tests/benchmarks/rate.py [FILE] [seconds]`.

Runs the command as a user would, tests switched off, for ordinary and for natively vectorised environments (where
FILE's environment has them) under `oa` and `is`, and counts the rows that entered an update between the end of the
first update and the end of the last one, each once; steps that only reset an environment are no rows. The machine's
limit is what all cores together could do if they did nothing but step the environments, evaluate the policy and
differentiate the loss, each measured bare, in this process, right before and after the runs.

Other programs on the machine make everything slower: the last column says how much of it they took meanwhile. The
column `CPU/row`, in microseconds, is CPU time of all processes of the run per row, which they disturb less.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from mlxe_async.settings import load_settings

ROOT = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
ONLY_OA = ("max_policy_lag", "max_owed_updates", "updates_per_publish")
ONE_PASS = {"algorithm.epochs": 1, "evaluation.enabled": "false", "stop.solved": "false", "checkpoint.interval_s": 0}


def busy_ticks() -> int:
    """CPU time that all programs of the machine have used, in ticks."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return user + nice + system + irq + softirq + steal


def run(file: str, seconds: float, **overrides: Any) -> dict[str, Any]:
    """One run of the command, and what its log says of it."""
    said = {**ONE_PASS, "stop.seconds": seconds, "stop.env_steps": 10**12, "run.name": '"rate"', **overrides}
    with tempfile.TemporaryDirectory() as folder:
        return measured(*watched(file, folder, seconds, said))


Sample = tuple[float, float, dict[str, float]]


def watched(file: str, folder: str, seconds: float, said: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Sample]]:
    """The command with FILE and what is `said` besides, its run below `folder`: the lines of its log, and samples.

    The run is to stop by itself after `seconds`; it is ended with whoever waits for it.
    """
    command = [sys.executable, "-m", "mlxe_async", file, "--no-progress"]
    for key, value in {"run.dir": f'"{folder}"', **said}.items():
        command += ["--set", f"{key}={value}"]
    log = Path(folder) / "latest" / "log.jsonl"
    with (Path(folder) / "said").open("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            samples = sampled(process, log, seconds)
        finally:
            process.kill()  # where it has ended that does nothing
            process.wait()
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{' '.join(command)}\nended with {process.returncode}:\n{output.read()[-4000:]}")
    with log.open() as lines:
        return [json.loads(line) for line in lines], samples


def sampled(process: subprocess.Popen[bytes], log: Path, seconds: float) -> list[Sample]:
    """While the command runs, four times a second: when, CPU seconds of the whole machine, and of each process."""
    samples: list[Sample] = []
    pids = {"mlxe-sup": process.pid}
    deadline = time.monotonic() + seconds + 120
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"the run was to stop after {seconds:g} s, and still ran two minutes later")
        time.sleep(0.25)
        if len(pids) == 1 and log.exists():
            started = [json.loads(line) for line in log.read_text().splitlines() if '"event": "' in line]
            if any(line.get("phase") == "learn" for line in started):
                pids |= {line["process"]: line["pid"] for line in started if line["event"] == "proc_start"}
        used = {name: spent for name, pid in pids.items() if (spent := cpu_seconds(pid)) is not None}
        if len(used) == len(pids) > 1:
            samples.append((time.monotonic(), busy_ticks() / TICKS, used))
    return samples


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


def measured(lines: list[dict[str, Any]], samples: list[Sample]) -> dict[str, Any]:
    """Rates and shares of one run between its first and its last update, out of its log and the samples."""
    updates = [line for line in lines if line.get("phase") == "learn" and line["updates"]]
    ends = [line["start_ns"] / 1e9 + line["seconds"] for line in updates]
    within = [sample for sample in samples if ends[0] <= sample[0] <= ends[-1]]
    if len(updates) < 3 or len(within) < 2:
        raise SystemExit(f"only {len(updates)} updates and {len(within)} samples: let it run for longer")
    rows = sum(line["rows"] for line in updates[1:])
    (since, busy_first, first), (until, busy_last, last) = within[0], within[-1]
    between = [line for line, end in zip(updates, ends, strict=True) if since < end <= until]
    cpu = {name: last[name] - first[name] for name in first}
    used = sum(cpu.values())
    generated = [line for line in lines if line.get("phase") == "generate"]
    lengths = [line["length"] for line in lines if line["event"] == "episode_end"]
    return {
        "rate": rows / (ends[-1] - ends[0]),
        "minutes": minutes_of(updates, ends),
        "generated": sum(line["rows"] for line in generated),
        "dropped": sum(line["dropped_rows"] or 0 for line in updates),
        "batch": rows / (len(updates) - 1),
        "updates": len(updates),
        "lag_mean": sum(line["lag_mean"] * line["rows"] for line in updates[1:]) / rows,
        "lag_max": max(line["lag_max"] for line in updates[1:]),
        "cpu": {name: seconds / (until - since) for name, seconds in cpu.items()},
        "cpu_row": {name: 1e6 * seconds / sum(line["rows"] for line in between) for name, seconds in cpu.items()},
        "others": max(0.0, busy_last - busy_first - used) / (until - since) / (os.cpu_count() or 1),
        "episode_length": float(np.mean(lengths[-100:])) if lengths else 0.0,
    }


# -- the machine's limit -----------------------------------------------------------------------------------------------


def minutes_of(updates: list[dict[str, Any]], ends: list[float]) -> list[float]:
    """Rows/s of each whole minute since the first update ended."""
    rows = [0] * int((ends[-1] - ends[0]) // 60)
    for line, end in zip(updates[1:], ends[1:], strict=True):
        minute = int((end - ends[0]) // 60)
        if minute < len(rows):
            rows[minute] += line["rows"]
    return [count / 60 for count in rows]


def best(work: Callable[[], int], repeats: int = 5) -> float:
    """Microseconds of CPU per row, the least of a few measurements: what it costs when nobody disturbs it."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        rows = work()
        found.append((time.process_time() - began) / rows)
    return 1e6 * min(found)


def differentiate(learning: Any, rows: Any, action: Any, advantage: Any) -> None:
    """The gradient of one actor-critic loss by a network's weights: the least that learning from rows costs."""
    import torch

    logits, value = learning(rows)
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, action[:, None])[:, 0]
    chance = -(log_probs.exp() * log_probs).sum(-1)
    loss = (0.5 * (value[:, 0] - advantage).square() - chosen * advantage - 0.01 * chance).mean()
    learning.zero_grad()
    torch.autograd.backward(loss)


def actor_critic(table: Mapping[str, Any]) -> Any:
    """An actor and a critic of four numbers and two actions, of the layers of a table `[algorithm]`."""
    from torch import nn

    from mlxe_async.networks.bodies import Body
    from mlxe_async.networks.dense import dense
    from mlxe_async.networks.heads import ActorCritic
    from mlxe_async.rows import Spaces

    activation = nn.Tanh if table.get("activation", "tanh") == "tanh" else nn.ReLU
    common = dense(4, tuple(table.get("common", ())), activation=activation)
    actor, critic = (
        dense(common.outputs, tuple(table.get(name, ())), outputs, activation)
        for name, outputs in (("policy", 2), ("value", 1))
    )
    return ActorCritic(Body(Spaces((4,), actions=2), {}), common, actor, critic)


def bare_costs(settings: Any, *, native: bool, batch: int) -> dict[str, float]:
    """CPU microseconds per row of stepping, choosing and differentiating, each by the fewest calls that do it."""
    import torch

    torch.set_num_threads(1)
    count, env_id = settings.schedule.envs_per_executor, settings.task.env
    rng = np.random.default_rng(0)
    if native:
        vector = gymnasium.make_vec(env_id, count, vectorization_mode="vector_entry_point").unwrapped
        vector.reset(seed=0)
        actions = rng.integers(0, 2, (200, count))

        def stepping() -> int:
            for action in actions:
                vector.step(action)
            return actions.size
    else:
        env = gymnasium.make(env_id).unwrapped
        env.reset(seed=0)
        pushes = rng.integers(0, 2, 20_000).tolist()

        def stepping() -> int:
            for number, action in enumerate(pushes):
                if env.step(action)[2]:
                    env.reset(seed=number)
            return len(pushes)

    table = settings.algorithm.table
    learning = actor_critic(table)
    observations = rng.standard_normal((count, 4)).astype(np.float32)

    def choosing() -> int:
        for _ in range(200):
            learning.scores(observations)
        return 200 * count

    rows = torch.randn(batch, 4)
    action, advantage = torch.randint(0, 2, (batch,)), torch.randn(batch)

    def differentiating() -> int:
        for _ in range(5):
            differentiate(learning, rows, action, advantage)
        return 5 * batch

    return {"step": best(stepping), "choose": best(choosing), "learn": best(differentiating)}


def tell(name: str, found: dict[str, Any], costs: dict[str, float]) -> None:
    """One run's line, and its processes' shares of a core."""
    limit = (os.cpu_count() or 1) * 1e6 / sum(costs.values())
    print(
        f"{name:12} {found['rate']:10,.0f} {limit:10,.0f} {100 * found['rate'] / limit:6.0f} %"
        f" {sum(found['cpu_row'].values()):8.2f} {found['batch']:8,.0f} {found['lag_mean']:6.2f} {found['lag_max']:4}"
        f" {100 * found['dropped'] / found['generated']:6.1f} % {found['episode_length']:7.0f}"
        f" {100 * found['others']:6.0f} %"
    )
    shares = {process: 100 * share for process, share in found["cpu"].items()}
    for title, table, digits in (
        ("of one core, %", shares, 1),
        ("CPU us/row", found["cpu_row"], 2),
        ("bare, CPU us/row", costs, 2),
    ):
        print(f"    {title:22} " + ", ".join(f"{name} {value:.{digits}f}" for name, value in table.items()))


def under(kind: str, file: str, folder: str) -> str:
    """The settings file under this schedule, without the keys that only `oa` has where that is not it."""
    tables = tomllib.loads(Path(file).read_text())
    if kind == tables["schedule"].get("kind"):
        return file
    lines = Path(file).read_text().splitlines()
    kept = [line for line in lines if kind == "oa" or line.split("=")[0].strip() not in ONLY_OA]
    text = "\n".join(f'kind = "{kind}"' if line.startswith("kind =") else line for line in kept)
    copy = Path(folder) / Path(file).name
    copy.write_text(f"{text}\n")
    return str(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default=str(ROOT / "settings" / "fast.toml"))
    parser.add_argument("seconds", nargs="?", type=float, default=10.0)
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as the command takes it")
    given = parser.parse_args()
    extra = dict(pair.split("=", 1) for pair in given.set)
    names = (f"rows/s {'limit':>10} {'of limit':>8} {'CPU/row':>8} {'batch':>8} {'lag':>6} {'max':>4} {'dropped':>8}"
             f" {'episode':>7} {'others':>8}")  # fmt: skip
    print(f"{'':16} {names}")
    for mode in ("single", "native"):
        for kind in ("oa", "is"):
            name = f"{mode} {kind}"
            if given.only not in name:
                continue
            overrides = {"task.vectorize": f'"{mode}"', **extra}
            settings = load_settings(Path(given.file), {})
            with tempfile.TemporaryDirectory() as folder:
                found = run(under(kind, given.file, folder), given.seconds, **overrides)
            costs = bare_costs(settings, native=mode == "native", batch=int(found["batch"]))
            tell(name, found, costs)


if __name__ == "__main__":
    main()
