"""Algorithms at equal wall time: `python tests/benchmarks/wall_time.py [--seeds 3]`; `--show` only tells.

A3C beside DQN, A2C and IMPALA, each for as many seconds of learning on the same two cores: CartPole by the presets of
`settings`, and MinAtar's Breakout (package `minatar`) by `settings/minatar-dqn.toml` and, for the others, its task
with their own algorithm and schedule. Told is the mean return of twenty greedy episodes by the newest weights, from
starts that no training has seen, and how many environment steps there were. Each finished run is a line of
`results/wall_time.jsonl`, and what is there of this processor is not run again; run it on a machine without other work.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from kept import processor
from recorded import FINAL_EPISODES, FINAL_SEED, RESULTS, ROOT, Job, Record, append, lines_of, tabled, tell

from mlxe_async import Supervisor, load_policy, load_settings
from mlxe_async.errors import NumericError

FIRST_SEED = 500
A2C = (
    *('algorithm={name = "a2c", body = "small", common = [128], policy = [], value = [], activation = "relu"}',),
    *("algorithm.normalise=false", "algorithm.reward_scaling=true", "algorithm.entropy=0.01"),
    *("algorithm.learning_rate=1e-3", "algorithm.learning_rate_last=0.0", "algorithm.anneal_steps=5_000_000"),
    *("schedule.executors=2", "schedule.envs_per_executor=16", "schedule.rollout_steps=10"),
)
UNSET = ("schedule.updates_per_publish", "memory.keep_rows", "memory.capacity_rows")
PUSHED = ('schedule.gradients="executors"', "schedule.max_policy_lag=8")
TASKS = {
    "CartPole": (
        15.0,
        {
            "A3C": ("a3c-cartpole", ()),
            "DQN": ("dqn-cartpole", ()),
            "A2C": ("a2c-cartpole", ()),
            "IMPALA": ("impala-cartpole", ()),
        },
    ),
    "MinAtar Breakout": (
        60.0,
        {
            "A3C": ("minatar-dqn", (*A2C, *PUSHED)),
            "DQN": ("minatar-dqn", ()),
            "A2C": ("minatar-dqn", (*A2C, 'schedule.kind="is"')),
            "IMPALA": ("minatar-dqn", (*A2C, 'algorithm.name="impala"')),
        },
    ),
}
HEAD = ("processor", "task", "seconds", "who", "seeds", "mean return", "lowest to highest", "environment steps")


def file_of(name: str, overrides: Sequence[str], folder: str) -> Path:
    """The settings file; without the keys of a memory that is replayed where another algorithm is set."""
    file = ROOT / "settings" / f"{name}.toml"
    if not overrides:
        return file
    section, lines = "", []
    for line in file.read_text().splitlines():
        section = line.strip("[]") if line.startswith("[") else section
        key = f"{section}.{line.partition('=')[0].strip()}"
        if key not in UNSET and not (section == "algorithm" and "=" in line):
            lines.append(line)
    made = Path(folder) / file.name
    made.write_text("\n".join(lines) + "\n")
    return made


def done(job: Job, seconds: float) -> Record:
    """One run, and what its policy reaches."""
    about = {"task": job.more["task"], "name": job.name, "settings": job.key, "seed": job.seed, "limit_s": seconds}
    limits = (f"run.seed={job.seed}", f"stop.seconds={seconds}", "stop.env_steps=1_000_000_000", "stop.solved=false")
    with tempfile.TemporaryDirectory(prefix="mlxe-wall-") as folder:
        file = file_of(job.file.stem, job.overrides, folder)
        overrides = [*job.overrides, *limits, "evaluation.enabled=false", "checkpoint.interval_s=0"]
        settings = load_settings(file, overrides)
        try:
            result = Supervisor(settings, run_dir=folder).run_sync()
        except NumericError as error:  # it diverged
            return about | {"final": None, "steps": None, "detail": str(error), "processor": processor()}
        policy = load_policy(result.run_dir, "last")
        returns = [episode.episode_return for episode in policy.play(FINAL_EPISODES, seed=FINAL_SEED)]
    return about | {"final": float(np.mean(returns)), "steps": result.steps, "processor": processor()}


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the table."""
    rows = []
    for task, machine in dict.fromkeys((one["task"], one["processor"]) for one in records):
        seconds, who = TASKS[task]
        for name in who:
            about = (machine, task, name, seconds)
            runs = [one for one in records if (one["processor"], one["task"], one["name"], one["limit_s"]) == about]
            finals = [one["final"] for one in runs if one["final"] is not None]
            if finals:
                span = f"{min(finals):.1f} to {max(finals):.1f}"
                steps = f"{np.mean([one['steps'] for one in runs if one['steps']]):,.0f}"
                mean = f"{np.mean(finals):.1f}"
                rows.append((machine, task, f"{seconds:g}", name, str(len(runs)), mean, span, steps))
    return tabled(HEAD, rows)


def main(words: Sequence[str]) -> int:
    """Do what is missing, by turns, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS), help="left out, both")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "wall_time.jsonl", help="where finished runs are kept"
    )
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    known = lines_of(asked.results)
    for task in asked.tasks if not asked.show else ():
        seconds, who = TASKS[task]
        for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds):
            for name, (file, overrides) in who.items():
                job = Job(name, ROOT / "settings" / f"{file}.toml", tuple(overrides), 0, seed, {"task": task})
                about = {"processor": processor(), "task": task, "name": name, "settings": job.key, "seed": seed}
                if any(about.items() <= one.items() and one["limit_s"] == seconds for one in known):
                    continue
                record = done(job, seconds)
                append(asked.results, record)
                known.append(record)
                sys.stdout.write(f"{task}, {name}, seed {seed}: {record['final']}, {record['steps']} steps\n")
                sys.stdout.flush()
    tell(table(known), asked.results)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of a run is not left behind
    sys.exit(main(sys.argv[1:]))
