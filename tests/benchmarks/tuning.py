"""Whether `tune` finds the fastest settings: `python tests/benchmarks/tuning.py [--quick]`.

It begins with bad values of settings/ppo-cartpole.toml, and is held against a full grid of the same keys. Then its
choice and the fastest three of the grid run by turns: other programs make runs slower, so the fastest of each counts.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from mlxe_async.cli.measuring import measured
from mlxe_async.cores import usable_cores
from mlxe_async.errors import MlxeError

FILE = str(Path(__file__).parents[2] / "settings" / "ppo-cartpole.toml")
STREAMS = 16
BAD = {
    "eight processes on few cores": ["schedule.executors=8", "schedule.envs_per_executor=2", "schedule.memorizer=own"],
    "one environment in each": ["schedule.executors=16", "schedule.envs_per_executor=1", "learner.threads=2"],
}
TURNS = 5


def grid(quick: bool) -> list[dict[str, Any]]:
    """All combinations of the keys that `tune` may change of this file."""
    threads = [1] if quick else [one for one in (1, 2, 4) if one <= usable_cores()]
    found: list[dict[str, Any]] = []
    for executors in (1, 2, 4, 8, 16):
        split = {"schedule.executors": executors, "schedule.envs_per_executor": STREAMS // executors}
        for count in threads:
            found += [
                {**split, "learner.threads": count, "schedule.kind": "is", "schedule.memorizer": place}
                for place in ("learner", "own")
            ]
            if executors == 1:  # one process holds them all, however many they are called
                found.append({**split, "learner.threads": count, "schedule.kind": "serial"})
    return found


def rate(changes: dict[str, Any]) -> float:
    """Rows per second; 0 where the run failed."""
    try:
        return asyncio.run(measured(FILE, [], changes)).rate
    except MlxeError as error:
        print(f"  failed: {error}", flush=True)
        return 0.0


def tuned(sets: list[str], folder: Path) -> tuple[dict[str, Any], float]:
    """Return the keys that `tune` ended with, and in how many seconds."""
    out, began = folder / f"{time.monotonic_ns()}.toml", time.monotonic()
    words = [word for one in sets for word in ("--set", one)]
    command = [sys.executable, "-m", "mlxe_async", "tune", FILE, *words, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    taken = time.monotonic() - began
    found = tomllib.loads(out.read_text()) if out.exists() else {}
    schedule = found.get("schedule", {})
    changes = {f"schedule.{key}": schedule[key] for key in ("executors", "envs_per_executor", "kind")}
    if schedule["kind"] != "serial" and "memorizer" in schedule:
        changes["schedule.memorizer"] = schedule["memorizer"]
    return changes | {"learner.threads": found["learner"]["threads"]}, taken


def _name(changes: dict[str, Any]) -> str:
    return str(sorted(changes.items()))


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        choices = {}
        for name, sets in BAD.items():
            choices[name] = tuned(sets, Path(folder))
            print(f"tune, {name}: {choices[name][0]} in {choices[name][1]:.0f} s", flush=True)
    rates = []
    for changes in grid(quick):
        rates.append((rate(changes), changes))
        print(f"  {rates[-1][0]:8,.0f} rows/s  {changes}", flush=True)
    top = [changes for _, changes in sorted(rates, key=lambda one: -one[0])[:3]]
    print(f"fastest of {len(rates)}: {top}", flush=True)
    wanted = [*top, *(changes for changes, _ in choices.values() if changes not in top)]
    found = {_name(changes): 0.0 for changes in wanted}
    for _ in range(TURNS):
        for changes in wanted:
            found[_name(changes)] = max(found[_name(changes)], rate(changes))
    fastest = max(found[_name(changes)] for changes in top)
    for name, (changes, seconds) in choices.items():
        reached = found[_name(changes)]
        print(
            f"{name}: {reached:,.0f} rows/s after {seconds:.0f} s, {reached / fastest:.1%} of the grid's {fastest:,.0f}"
        )


if __name__ == "__main__":
    main()
