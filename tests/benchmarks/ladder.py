"""The study's ladder of agents: `python tests/benchmarks/ladder.py [--seeds 5] [--seconds 240]`; `--show` only draws.

The first three rungs push gradients of threads, none waits; the fourth is the threaded baseline. Each file of
`settings/study` is run as it is, but for the limits, which are 3,000 episodes, as in the study's charts, or seconds.
Each finished run is a line of `results/ladder.jsonl`, and what is there is not run again. Told and drawn is the mean
length of the last eight training episodes, exploration on, as the study has it; of all that were run `--show` makes
table and pictures.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kept import processor
from recorded import RESULTS, ROOT, Job, Record, append, lines_of, tabled, tell

from mlxe_async import Supervisor, load_settings, read_log
from mlxe_async.errors import NumericError

LAST = 8
EPISODES = 3000
POINTS = 60
FIRST_SEED = 100
RUNGS = {
    "base": ("ladder-1-base", "single episodes to some 10,000 steps, mean of 8 falls to some 100; no trend"),
    "deep": ("ladder-2-deep", "mean of 8 some 700 to 1,200 at episode 3,000, a visible trend"),
    "task": ("ladder-3-task", "50,000 in single episodes, unstable; mean of 8 10,000 near episode 2,030"),
    "task, istb": ("istb-as-published", "50,000 after some 440 episodes, mean of 5 runs"),
}
HEAD = (
    *("agent", "seeds", "episodes", "longest", "best mean of 8", "last mean of 8", "50,000 reached", "seconds"),
    "as published",
)


def curve_of(lengths: Sequence[float]) -> list[list[float]]:
    """At most `POINTS` points in equal proportions: number of the episode, and mean length of the last eight."""
    if not lengths:
        return []
    sums = np.concatenate([[0.0], np.cumsum(lengths)])
    found = []
    for end in sorted({round(float(one)) for one in np.geomspace(1, len(lengths), POINTS)}):
        first = max(0, end - LAST)
        found.append([end, round(float(sums[end] - sums[first]) / (end - first), 1)])
    return found


def told(lengths: Sequence[float]) -> dict[str, Any]:
    """What a line holds of the lengths of a run's training episodes."""
    means = np.convolve(lengths, np.ones(LAST) / LAST, "valid") if len(lengths) >= LAST else np.zeros(1)
    return {
        "episodes": len(lengths),
        "longest": max(lengths, default=0),
        "best8": round(float(means.max()), 1),
        "last8": round(float(means[-1]), 1),
        "curve": curve_of(lengths),
    }


def done(job: Job, seconds: float) -> Record:
    """One run, and what came of it."""
    overrides = [*job.overrides, f"run.seed={job.seed}", f"stop.seconds={seconds}", "checkpoint.interval_s=0"]
    settings = load_settings(job.file, overrides)
    about = {"name": job.name, "settings": job.key, "seed": job.seed, "limit_s": seconds, "processor": processor()}
    with tempfile.TemporaryDirectory(prefix="mlxe-ladder-") as folder:
        try:
            result = Supervisor(settings, run_dir=folder).run_sync()
        except NumericError as error:  # it diverged
            return about | told([]) | {"reason": "diverged", "detail": str(error), "seconds": None, "updates": None}
        lengths = [one["length"] for one in read_log(result.run_dir) if one["event"] == "episode_end"]
    return (
        about
        | told(lengths)
        | {
            "reason": result.reason,
            "seconds": round(result.seconds, 1),
            "updates": result.updates,
        }
    )


def table(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the table, medians over the seeds."""
    rows = []
    for name, (_, published) in RUNGS.items():
        runs = [one for one in records if one["name"] == name]
        if not runs:
            continue

        def median(key: str, runs: Sequence[Mapping[str, Any]] = runs) -> str:
            known = [one[key] for one in runs if one[key] is not None]
            return f"{np.median(known):,.0f}" if known else ""

        reached = [one["episodes"] for one in runs if one["reason"] == "episode_steps"]
        at = f", median episode {np.median(reached):.0f}" if reached else ""
        figures = (median(key) for key in ("episodes", "longest", "best8", "last8"))
        rows.append(
            (name, str(len(runs)), *figures, f"{len(reached)} of {len(runs)}{at}", median("seconds"), published)
        )
    return tabled(HEAD, rows)


def draw(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The study's two pictures: its first three agents, and the third beside the threaded baseline."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, names in zip(panels, (("base", "deep", "task"), ("task", "task, istb")), strict=True):
        for name in names:
            colour = f"C{list(RUNGS).index(name)}"
            for number, run in enumerate(one for one in records if one["name"] == name and one["curve"]):
                at, heights = np.array(run["curve"]).T
                panel.plot(at, heights, color=colour, linewidth=0.9, alpha=0.8, label=None if number else name)
        panel.set(xlabel="episode", yscale="log", xlim=(0, EPISODES))
        panel.axhline(50_000, color="black", linewidth=0.6, linestyle=":")
        panel.legend(frameon=False)
    panels[0].set_ylabel(f"mean steps of the last {LAST} episodes")
    figure.savefig(path, dpi=110)


def main(words: Sequence[str]) -> int:
    """Do what is missing, seed by seed, then print the table and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--seconds", type=float, default=240, help="most of each run")
    parser.add_argument("--rungs", nargs="*", choices=list(RUNGS), default=list(RUNGS), help="left out, all")
    parser.add_argument("--results", type=Path, default=RESULTS / "ladder.jsonl", help="where finished runs are kept")
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    known = lines_of(asked.results)
    for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds) if not asked.show else ():
        for name in asked.rungs:
            file = ROOT / "settings" / "study" / f"{RUNGS[name][0]}.toml"
            job = Job(name, file, (f"stop.episodes={EPISODES}",), 0, seed, {})
            if any((one["settings"], one["seed"], one["limit_s"]) == (job.key, seed, asked.seconds) for one in known):
                continue
            record = done(job, asked.seconds)
            append(asked.results, record)
            known.append(record)
            came = f"{record['episodes']} episodes, best {record['best8']:,.0f}, {record['reason']}"
            sys.stdout.write(f"{name}, seed {seed}: {came}\n")
            sys.stdout.flush()
    tell(table(known), asked.results)
    if known:
        draw(known, asked.results.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of a run is not left behind
    sys.exit(main(sys.argv[1:]))
