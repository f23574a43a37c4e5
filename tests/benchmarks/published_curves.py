"""What RELAAX published of its distributed agents: `python tests/benchmarks/published_curves.py [--seeds 3]`.

Its curves are of four agents each: the policy gradient reaches 200 on CartPole (of 200 steps) after 39,000 to 45,000
environment steps, DDPG -200 on Pendulum after 30,000 to 34,000. Here four executors make the gradients by
`settings/pg-distributed-cartpole.toml` and `settings/ddpg-distributed-pendulum.toml`, for as many steps. Told are the
mean return of twenty episodes by the last weights, from starts that no training has seen, and after how many steps
the mean of the last twenty training episodes came to the target first; it lags behind, and is of noisy actions.
Each finished run is a line of `results/published_curves.jsonl`, and what is there is not run again.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pools import processor
from recorded import FINAL_EPISODES, FINAL_SEED, RESULTS, ROOT, Job, Record, append, lines_of, tabled, tell

from mlxe_async import Supervisor, load_policy, load_settings

FIRST_SEED = 900
SHORT = ("task.max_episode_steps=200", "evaluation.max_episode_steps=200", "algorithm.anneal_steps=45_000")
CURVES = {
    "policy gradient, CartPole": ("pg-distributed-cartpole", SHORT, 45_000, 200.0, 195.0),
    "DDPG, Pendulum": ("ddpg-distributed-pendulum", ("memory.capacity_rows=34_000",), 34_000, -200.0, -200.0),
}
"""Settings file, overrides, steps, the published return, and what counts as reached."""
HEAD = ("agent", "published", "seeds", "mean return at the end", "lowest to highest", "target first after steps")


def first_reached(log: Path, target: float) -> int | None:
    """Environment steps after which the mean of twenty training episodes was at the target first."""
    returns = list[float]()
    for line in map(json.loads, log.read_text().splitlines()):
        if line["event"] == "episode_end":
            returns.append(line["return"])
            if len(returns) >= FINAL_EPISODES and np.mean(returns[-FINAL_EPISODES:]) >= target:
                return int(line["env_steps"])
    return None


def done(job: Job) -> Record:
    """One run."""
    _, _, steps, _, target = CURVES[job.name]
    limits = (f"run.seed={job.seed}", f"stop.env_steps={steps}", "stop.solved=false", "schedule.executors=4")
    with tempfile.TemporaryDirectory(prefix="mlxe-curves-") as folder:
        overrides = [*job.overrides, *limits, "evaluation.enabled=false", "checkpoint.interval_s=0"]
        result = Supervisor(load_settings(job.file, overrides), run_dir=folder).run_sync()
        policy = load_policy(result.run_dir, "last")
        returns = [episode.episode_return for episode in policy.play(FINAL_EPISODES, seed=FINAL_SEED)]
        reached = first_reached(Path(result.run_dir) / "log.jsonl", target)
    about = {"name": job.name, "settings": job.key, "seed": job.seed, "steps": steps, "processor": processor()}
    return about | {"final": float(np.mean(returns)), "reached": reached, "seconds": result.seconds}


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the table."""
    rows = []
    for name, (_, _, steps, told, _) in CURVES.items():
        if runs := [one for one in records if one["name"] == name]:
            finals = [one["final"] for one in runs]
            firsts = ", ".join("-" if one["reached"] is None else f"{one['reached']:,}" for one in runs)
            span = f"{min(finals):.1f} to {max(finals):.1f}"
            rows.append((name, f"{told:g} by {steps:,}", str(len(runs)), f"{np.mean(finals):.1f}", span, firsts))
    return tabled(HEAD, rows)


def main(words: Sequence[str]) -> int:
    """Do what is missing, by turns, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--results", type=Path, default=RESULTS / "published_curves.jsonl", help="where runs are kept")
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    known = lines_of(asked.results)
    for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds) if not asked.show else ():
        for name, (file, overrides, *_) in CURVES.items():
            job = Job(name, ROOT / "settings" / f"{file}.toml", tuple(overrides), 0, seed, {})
            if any((r["name"], r["settings"], r["seed"]) == (name, job.key, seed) for r in known):
                continue
            record = done(job)
            append(asked.results, record)
            known.append(record)
            sys.stdout.write(f"{name}, seed {seed}: {record['final']:.1f}, reached after {record['reached']} steps\n")
            sys.stdout.flush()
    tell(table(known), asked.results)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of a run is not left behind
    sys.exit(main(sys.argv[1:]))
