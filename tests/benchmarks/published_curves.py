"""RELAAX's two curves of small tasks: `python tests/benchmarks/published_curves.py [--seeds 3]`; `--show` only tells.

Its page has CartPole of 200 steps solved by a policy gradient after 45,000 environment steps, and Pendulum at a return
of -200 by DDPG with four workers after 34,000. Here both are learned by four executors that make the gradients, from
`settings/pg-distributed-cartpole.toml` and `settings/ddpg-distributed-pendulum.toml`, for as many steps. Told is the
mean return of twenty greedy episodes by the last weights, from starts that no training has seen. Each finished run is a
line of `results/published_curves.jsonl`, and what is there is not run again.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from recorded import RESULTS, ROOT, Job, Record, complete, read, tabled, tell

FIRST_SEED = 600
HEAD = ("task", "steps", "published", "seeds", "reached by", "mean return of each")
WORKERS = "schedule.executors=4"
SHORT = tuple(f"{table}.{key}=200" for table, key in (("task", "max_episode_steps"), ("evaluation", "screen_steps")))


class Curve(NamedTuple):
    """What was published, and what learns it here."""

    file: str
    steps: int
    target: float
    overrides: tuple[str, ...]


CURVES = {
    "CartPole, policy gradient": Curve(
        "pg-distributed-cartpole",
        45_000,
        200.0,
        (WORKERS, *SHORT, "evaluation.max_episode_steps=200", "algorithm.anneal_steps=45_000"),
    ),
    "Pendulum, DDPG": Curve("ddpg-distributed-pendulum", 34_000, -200.0, (WORKERS, "memory.capacity_rows=34_000")),
}


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the table."""
    rows = []
    for name, curve in CURVES.items():
        finals = [one["final"] for one in records if one["name"] == name]
        if finals:
            reached = sum(one >= curve.target for one in finals)
            each = ", ".join(f"{one:.1f}" for one in finals)
            seeds = str(len(finals))
            rows.append((name, f"{curve.steps:,}", f"{curve.target:g}", seeds, f"{reached} of {seeds}", each))
    return tabled(HEAD, rows)


def main(words: Sequence[str]) -> int:
    """Do what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "published_curves.jsonl", help="where finished runs are kept"
    )
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    jobs = [
        Job(name, ROOT / "settings" / f"{curve.file}.toml", curve.overrides, curve.steps, seed, {})
        for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds)
        for name, curve in CURVES.items()
    ]
    tell(table(read(asked.results) if asked.show else complete(jobs, asked.results)), asked.results)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of a run is not left behind
    sys.exit(main(sys.argv[1:]))
