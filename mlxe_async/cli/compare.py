"""`compare FILE.toml ... --seeds A..B`: each settings file with each seed, one after the other, and how it went.

Never side by side: runs that share the cores would measure each other.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mlxe_async.analysis.outcomes import Outcome, outcome, table
from mlxe_async.cli.arguments import Parser
from mlxe_async.cli.console import Console
from mlxe_async.errors import RunFailed, SettingsError
from mlxe_async.settings import load_settings

LONGEST_RUN_S = 3600.0
ENDED = {0, 3, 5}


def run(arguments: Sequence[str]) -> int:
    """Run all, print a Markdown table on stdout as the groups finish. Returns the exit code."""
    parser = Parser("compare FILE.toml ... --seeds A..B [--set a.b=VALUE ...] [--baselines N]")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--seeds", required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=VALUE")
    parser.add_argument("--baselines", type=int, default=0)
    asked = parser.parse_args(arguments)
    seeds = parse_seeds(asked.seeds)
    for file in asked.files:  # all mistakes before the first of many runs
        load_settings(file, asked.overrides)
    console = Console(sys.stderr)
    groups: list[tuple[str, list[Outcome]]] = []
    for file in asked.files:
        name = Path(file).stem
        outcomes: list[Outcome] = []
        for seed in seeds:
            one = run_once(file, [*asked.overrides, f"run.seed={seed}"])
            outcomes.append(one)
            how = f"solved at episode {one.episodes:,}" if one.solved else f"not solved ({one.reason})"
            console.line(f"{name} seed {seed}: {how}, {one.seconds_to_exit:.1f} s")
        groups.append((name, outcomes))
    sys.stdout.write("\n".join(table(groups)) + "\n")
    if asked.baselines:
        from mlxe_async.baselines import cartpole_baselines

        evaluation = load_settings(asked.files[0], asked.overrides).evaluation.model_dump()
        lines = [baseline.line for baseline in cartpole_baselines(evaluation, asked.baselines)]
        sys.stdout.write("\nWithout any learning:\n\n" + "".join(f"- {line}\n" for line in lines))
    return 0


def parse_seeds(text: str) -> list[int]:
    """`"3"`, `"1000..1009"` (both ends included) or `"1,2,5"`.

    Raises:
        SettingsError: it is neither.
    """
    if re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        return [int(seed) for seed in text.split(",")]
    match = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text)
    if not match or int(match[2]) < int(match[1]) or int(match[2]) - int(match[1]) >= 100_000:
        raise SettingsError([f'--seeds: got "{text[:60]}", expected A..B with A <= B, or A,B,C'])
    return list(range(int(match[1]), int(match[2]) + 1))


def run_once(file: str, overrides: Sequence[str]) -> Outcome:
    """Run the command as a user would, wait for its end, judge what it left.

    Raises:
        RunFailed: it could not be started, or did not say where its run is.
    """
    sets = [part for override in overrides for part in ("--set", override)]
    command = [sys.executable, "-m", "mlxe_async", file, "--no-progress", *sets]
    started_ns = time.monotonic_ns()
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=LONGEST_RUN_S, check=False)
    seconds = (time.monotonic_ns() - started_ns) / 1e9
    last = process.stderr.strip().splitlines()[-1] if process.stderr.strip() else ""
    folder = Path(last.rpartition(": ")[2])
    if process.returncode not in ENDED or not (folder / "log.jsonl").is_file():
        raise RunFailed(f"{' '.join(command)} ended with code {process.returncode}: {last}")
    return outcome(folder, started_ns, seconds)
