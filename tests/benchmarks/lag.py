"""What a correction keeps under lag: `python tests/benchmarks/lag.py [--seeds 10] [--steps N]`; `--show` only draws.

Each variant of `lag.toml` is run under `schedule.simulated_lag` 0, 4, 16 and 64 for each seed, exactly and repeatably;
each finished run is a line of `results/lag.jsonl`, and what is there is not run again. Drawn are the learning curves
and the area under them, relative to that of the same seeds at lag 0. A curve is the mean return of tested versions,
which act greedily, against the environment steps at which they were published; a run that diverged has no area.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import signal
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recorded import RESULTS, ROOT, Job, Record, complete, read, tabled, tell

from mlxe_async.analysis.statistics import band, bootstrap
from mlxe_async.errors import MlxeError

LAGS = (0, 4, 16, 64)
FIRST_SEED = 2000
STEPS = 40_000
VARIANTS = Path(__file__).with_name("lag.toml")
HEAD = ("variant", "lag", "lag of rows", "seeds", "area", "of lag 0", "95 %", "last tests", "diverged")
GRID = 200


def area(record: Mapping[str, Any]) -> float:
    """Mean height of a run's learning curve from 0 to its last step; 0 of one that diverged."""
    return 0.0 if record["failed"] else float(curve(record, np.linspace(0, record["steps"], GRID)).mean())


def curve(record: Mapping[str, Any], steps: Any) -> Any:
    """Height of the learning curve at these steps (G,): straight from test to test, level before and after them."""
    points = sorted(map(tuple, record["tests"]))
    if not points:
        return np.full(len(steps), record["final"])
    at, heights = np.array(points, np.float64).T
    return np.interp(steps, at, heights)


def groups_of(records: Sequence[Record]) -> dict[str, dict[int, list[Record]]]:
    """Variant -> lag -> its runs by seed."""
    groups: dict[str, dict[int, list[Record]]] = {}
    for record in sorted(records, key=lambda record: (record["lag_asked"], record["seed"])):
        groups.setdefault(record["name"], {}).setdefault(record["lag_asked"], []).append(record)
    return groups


def share_of(runs: Sequence[Record], unlagged: Sequence[Record]) -> tuple[float, tuple[float, float]]:
    """Area of runs over that of the same seeds without lag, and its 95 % bootstrap interval, seeds drawn whole."""
    known = {record["seed"]: area(record) for record in unlagged}
    pairs = np.array([[area(record), known[record["seed"]]] for record in runs if record["seed"] in known])
    if not len(pairs):
        return float("nan"), (float("nan"), float("nan"))
    return float(_ratios(pairs[None])[0]), bootstrap(pairs, _ratios)


def _ratios(pairs: Any) -> Any:
    ours, theirs = pairs.sum(1).T
    return ours / theirs


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the table."""
    rows = []
    for name, by_lag in groups_of(records).items():
        for lag, runs in by_lag.items():
            share, (low, high) = share_of(runs, by_lag.get(0, ()))
            last = [
                np.mean([mean for _, mean in run["tests"][-5:]] or [run["final"]]) for run in runs if not run["failed"]
            ]
            lags = [run["lag"] for run in runs if run.get("lag") is not None]
            failed = sum(run["failed"] is not None for run in runs)
            rows.append(
                (
                    name,
                    str(lag),
                    f"{np.mean(lags):.1f}" if lags else "",
                    str(len(runs)),
                    f"{np.mean([area(run) for run in runs]):.0f}",
                    f"{share:.0%}",
                    f"{low:.0%} to {high:.0%}",
                    f"{np.mean(last):.0f}" if last else "",
                    str(failed),
                )
            )
    return tabled(HEAD, rows)


def draw(records: Sequence[Record], path: Path) -> None:
    """Learning curves, a panel for each variant, and behind them what is kept of the area."""
    from matplotlib.figure import Figure

    groups = groups_of(records)
    every = sorted({lag for by_lag in groups.values() for lag in by_lag})
    figure = Figure(figsize=(3.4 * (len(groups) + 1), 3.4), layout="constrained")
    *panels, last = figure.subplots(1, len(groups) + 1)
    for panel, (name, by_lag) in zip(panels, groups.items(), strict=True):
        for number, (lag, runs) in enumerate(by_lag.items()):
            steps = np.linspace(0, runs[0]["steps"], GRID)
            whole = [curve(run, steps) for run in runs if not run["failed"]]
            if whole:
                mean, low, high = band(whole)
                panel.plot(steps / 1000, mean, color=f"C{number}", label=f"lag {lag}")
                panel.fill_between(steps / 1000, low, high, color=f"C{number}", alpha=0.2, linewidth=0)
        panel.set(title=name, xlabel="1,000 steps", ylim=(0, 520))
    panels[0].set_ylabel("return of tested versions")
    panels[0].legend(frameon=False)
    for number, (name, by_lag) in enumerate(groups.items()):
        places = [every.index(lag) for lag in by_lag]
        shares = [share_of(runs, by_lag.get(0, ())) for runs in by_lag.values()]
        heights, ends = [share for share, _ in shares], np.array([ends for _, ends in shares])
        last.plot(places, heights, marker="o", color=f"C{number}", label=name)
        last.fill_between(places, ends[:, 0], ends[:, 1], color=f"C{number}", alpha=0.15, linewidth=0)
    last.axhline(0.9, color="black", linewidth=0.8, linestyle=":")
    last.set_xticks(range(len(every)), map(str, every))
    last.set(title="area, relative to lag 0", xlabel="lag", ylim=(0, None))
    last.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main(words: Sequence[str]) -> int:
    """Do what is missing, then print the table and draw."""
    known = {one["name"]: one for one in tomllib.loads(VARIANTS.read_text())["variant"]}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--variants", nargs="*", choices=list(known), default=list(known), help="left out, all")
    parser.add_argument("--lags", nargs="*", type=int, default=list(LAGS))
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of each run")
    parser.add_argument("--results", type=Path, default=RESULTS / "lag.jsonl", help="where finished runs are kept")
    parser.add_argument("--show", action="store_true", help="run nothing; show all runs of so many steps")
    asked = parser.parse_args(words)
    try:
        if not asked.show:
            complete(_jobs(asked, known), asked.results)
        records = [one for one in read(asked.results) if one["steps"] == asked.steps and one["name"] in asked.variants]
    except (MlxeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    tell(table(records), asked.results)
    if records:
        draw(records, asked.results.with_suffix(".png"))
    return 0


def _jobs(asked: argparse.Namespace, known: Mapping[str, Mapping[str, Any]]) -> list[Job]:
    """Seed by seed, so that what is there after an interruption is comparable."""
    jobs = []
    for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds):
        for name in asked.variants:
            for lag in asked.lags:
                overrides = (*known[name]["set"], f"schedule.simulated_lag={lag}")
                jobs.append(Job(name, ROOT / known[name]["file"], overrides, asked.steps, seed, {"lag_asked": lag}))
    return jobs


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of a run is not left behind
    sys.exit(main(sys.argv[1:]))
