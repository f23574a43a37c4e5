"""Pushes that are late: `python tests/benchmarks/pushed_lag.py [--seeds 20] [--steps 60000]`; `--show` only tells.

A3C on CartPole (`settings/a3c-cartpole.toml`), each push applied when sixteen younger ones have come
(`schedule.simulated_lag`): as it is, and moved to the newest weights (`combine = "delay_compensated"`, Zheng et al.
2017), adaptive and constant; and without lag. Each finished run is a line of `results/pushed_lag.jsonl`, and what is
there is not run again. Told are the area under the curve of tested versions, with a 95 % bootstrap interval, and the
probability that a compensated run has a larger area than one that is not (Agarwal et al. 2021), with its interval.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lag import area
from recorded import RESULTS, ROOT, Job, Record, complete, read, tabled, tell

from mlxe_async.analysis.statistics import bootstrap, means, probability_of_improvement
from mlxe_async.errors import MlxeError

LAG, FIRST_SEED = 16, 3000
VARIANTS = {
    "no lag": (),
    "fifo": (f"schedule.simulated_lag={LAG}",),
    "adaptive": (f"schedule.simulated_lag={LAG}", "schedule.combine=delay_compensated"),
    "constant": (
        f"schedule.simulated_lag={LAG}",
        "schedule.combine=delay_compensated",
        "schedule.compensation=constant",
    ),
}
HEAD = ("pushes", "lag of pushes", "seeds", "area", "95 %", "better than fifo", "95 %", "mean compensation", "diverged")


def better(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Probability that one of ours is larger than one of theirs; a draw counts half."""
    return probability_of_improvement(theirs, ours)  # where less is better theirs would be the better ones


def better_between(ours: Sequence[float], theirs: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Its 95 % bootstrap interval, each side's runs drawn anew."""
    rng = np.random.default_rng(0)
    found = [better(rng.choice(ours, len(ours)), rng.choice(theirs, len(theirs))) for _ in range(draws)]
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the table."""
    areas = {name: [area(one) for one in records if one["name"] == name] for name in VARIANTS}
    rows = []
    for name, found in areas.items():
        runs = [one for one in records if one["name"] == name]
        if not runs:
            continue
        low, high = bootstrap(found, means)
        chance = between = ""
        if name not in ("fifo", "no lag") and areas["fifo"]:
            chance = f"{better(found, areas['fifo']):.2f}"
            between = "{:.2f} to {:.2f}".format(*better_between(found, areas["fifo"]))
        moved = [one["compensation"] for one in runs if one.get("compensation") is not None]
        rows.append(
            (
                name,
                f"{np.mean([one['lag'] for one in runs if one.get('lag') is not None]):.1f}",
                str(len(runs)),
                f"{np.mean(found):.0f}",
                f"{low:.0f} to {high:.0f}",
                chance,
                between,
                f"{np.mean(moved):.2g}" if moved else "",
                str(sum(one["failed"] is not None for one in runs)),
            )
        )
    return tabled(HEAD, rows)


def main(words: Sequence[str]) -> int:
    """Do what is missing, seed by seed, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS), help="left out, all")
    parser.add_argument("--steps", type=int, default=60_000, help="environment steps of each run")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "pushed_lag.jsonl", help="where finished runs are kept"
    )
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    jobs: list[Job] = []
    for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds):
        for name in asked.variants:
            overrides = VARIANTS[name]
            more: dict[str, Any] = {"pushed_lag": LAG if overrides else 0}
            bound = f"schedule.max_policy_lag={2 * LAG + 8}"
            file = ROOT / "settings" / "a3c-cartpole.toml"
            jobs.append(Job(name, file, (bound, *overrides), asked.steps, seed, more))
    try:
        if not asked.show:
            complete(jobs, asked.results)
        records = [one for one in read(asked.results) if one["steps"] == asked.steps]
    except (MlxeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    tell(table(records), asked.results)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of a run is not left behind
    sys.exit(main(sys.argv[1:]))
