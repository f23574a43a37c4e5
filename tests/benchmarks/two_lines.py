"""Two lines learn: `python tests/benchmarks/two_lines.py [PAIR ...]`; `--show` only prints the table.

Each pair of a task and an algorithm is run from nothing but `[task] env`, `[algorithm] name`, a number of environment
steps and a seed: all else is what the program chooses. A run counts by greedy episodes with its last weights, from
starts that it has not seen. A pair passes where two of three seeds reach its bar; a third one is run only where the
first two differ. One run at a time, at low priority. Each finished run is a line of `results/two_lines.jsonl`: what is
there is not run again, so the command may be stopped at any time.

The bars were written before the runs: those of quick tests, the thresholds that gymnasium has registered, and, where
there is neither at so few steps, what a learner reaches that a broken one does not.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from recorded import RESULTS, Record, append, read

from mlxe_async import Supervisor, load_policy, load_settings
from mlxe_async.analysis.study import program_key
from mlxe_async.errors import MlxeError, NumericError

SEEDS = (5101, 5102, 5103)
"""Of all pairs, where they have no others."""
TEST_SEED = 7_100_000
NEEDED = 2
NICENESS = 10


class Pair(NamedTuple):
    """A row of the table.

    Args:
        env: the task.
        algorithm: its name.
        steps: environment steps.
        bar: mean return of the greedy episodes.
        episodes: how many of them.
        source: where the bar comes from.
        seeds: that nothing was chosen on; others than at first where a rule was changed after the first runs.
    """

    env: str
    algorithm: str
    steps: int
    bar: float
    episodes: int
    source: str
    seeds: tuple[int, ...] = SEEDS

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return f"{self.env}:{self.algorithm}"


QUICK, REGISTERED, OWN = "quick bar", "registered threshold", "own"
PAIRS = (
    Pair("CartPole-v1", "ppo", 100_000, 475, 100, QUICK),
    Pair("CartPole-v1", "a2c", 150_000, 400, 100, QUICK),
    Pair("CartPole-v1", "dqn", 50_000, 400, 100, QUICK),
    Pair("Acrobot-v1", "ppo", 200_000, -100, 100, REGISTERED),
    Pair("Acrobot-v1", "dqn", 100_000, -100, 100, REGISTERED),
    Pair("LunarLander-v3", "ppo", 300_000, 200, 50, REGISTERED),
    Pair("LunarLander-v3", "dqn", 200_000, 150, 50, "154 at 100,000 by others"),
    Pair("LunarLanderContinuous-v3", "ppo", 300_000, 200, 50, REGISTERED),
    Pair("LunarLanderContinuous-v3", "sac", 80_000, 200, 50, REGISTERED),
    Pair("Pendulum-v1", "ppo", 150_000, -250, 100, QUICK),
    Pair("Pendulum-v1", "sac", 10_000, -200, 100, QUICK),
    Pair("Pendulum-v1", "td3", 15_000, -250, 100, QUICK),
    Pair("MountainCarContinuous-v0", "sac", 50_000, 90, 50, REGISTERED),
    Pair("FrozenLake-v1", "q_learning", 100_000, 0.7, 500, REGISTERED),
    Pair("FrozenLake-v1", "dqn", 50_000, 0.7, 500, REGISTERED, (5201, 5202, 5203)),
    Pair("CliffWalking-v1", "q_learning", 50_000, -20, 20, QUICK),
    Pair("CliffWalking-v1", "dqn", 50_000, -20, 20, QUICK),
    Pair("Taxi-v4", "q_learning", 200_000, 7, 200, "8 is registered; the best policy has 7.9"),
    Pair("Taxi-v4", "dqn", 200_000, 7, 200, "8 is registered; the best policy has 7.9"),
    Pair("MinAtar/Breakout-v1", "dqn", 300_000, 4, 100, f"{OWN}; random play has 0.5"),
    Pair("MinAtar/Breakout-v1", "ppo", 500_000, 4, 100, f"{OWN}; random play has 0.5"),
    Pair("HalfCheetah-v5", "sac", 100_000, 2500, 10, f"{OWN}; random play has -280"),
    Pair("HalfCheetah-v5", "td3", 100_000, 2000, 10, f"{OWN}; random play has -280"),
    Pair("HalfCheetah-v5", "ppo", 100_000, 300, 10, f"{OWN}; random play has -280"),
)
HEAD = ("task", "algorithm", "steps", "bar", "of", "seeds", "reaches it", "s")


def done(pair: Pair, seed: int, most_seconds: float) -> Record:
    """One run, and the mean return of its greedy episodes; that it failed is a result, too."""
    about = {"settings": pair.name, "steps": pair.steps, "seed": seed, "program": program_key(), "tests": []}
    said = {"run.seed": seed, "stop.env_steps": pair.steps, "stop.seconds": most_seconds}
    settings = load_settings({"task": {"env": pair.env}, "algorithm": {"name": pair.algorithm}}, said)
    with tempfile.TemporaryDirectory(prefix="mlxe-two-lines-") as folder:
        try:
            result = Supervisor(settings, run_dir=folder).run_sync()
        except NumericError as error:  # it diverged
            return about | {"failed": str(error), "final": None, "seconds": None}
        if result.reason not in ("env_steps", "seconds"):
            raise KeyboardInterrupt(f"{pair.name}, seed {seed}: ended by {result.reason}, which is not recorded")
        facts = json.loads((result.run_dir / "run.json").read_text())["facts"]
        chosen = {one["setting"]: one["value"] for one in facts["chosen"]}
        policy = load_policy(result.run_dir, "last")
        returns = [episode.episode_return for episode in policy.play(pair.episodes, seed=TEST_SEED)]
    value = round(sum(returns) / len(returns), 3)
    ended = {"reason": result.reason, "steps_done": result.steps, "updates": result.updates, "chosen": chosen}
    return about | {"failed": None, "final": value, "seconds": round(result.seconds, 1), **ended}


def passes(pair: Pair, record: Record) -> bool:
    """Whether a run reached the bar within its steps."""
    return record["failed"] is None and record["reason"] == "env_steps" and record["final"] >= pair.bar


def of(pair: Pair, records: Sequence[Record]) -> list[Record]:
    """The records of a pair, in the order of its seeds."""
    own = [one for one in records if (one["settings"], one["steps"]) == (pair.name, pair.steps)]
    return [one for seed in pair.seeds for one in own if one["seed"] == seed]


def verdict(pair: Pair, records: Sequence[Record]) -> bool | None:
    """Whether two of three seeds reach the bar; None while that is open."""
    won = [passes(pair, record) for record in of(pair, records)]
    if sum(won) >= NEEDED:
        return True
    return False if len(won) - sum(won) > len(pair.seeds) - NEEDED else None


def missing(pair: Pair, records: Sequence[Record]) -> int | None:
    """The seed to run next; None where the verdict is known."""
    if verdict(pair, records) is not None:
        return None
    known = {record["seed"] for record in of(pair, records)}
    return next(seed for seed in pair.seeds if seed not in known)


def table(records: Sequence[Record]) -> Iterator[str]:
    """The lines of the table, and how many pairs reach their bars."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"| {' | '.join(['---'] * len(HEAD))} |"
    found = []
    for pair in PAIRS:
        own = of(pair, records)
        found.append(judged := verdict(pair, records))
        told = ", ".join(_told(record) for record in own)
        seconds = ", ".join(f"{record['seconds']:.0f}" for record in own if record["seconds"] is not None)
        word = {True: "yes", False: "no", None: "open" if own else ""}[judged]
        row = (pair.env, pair.algorithm, f"{pair.steps:,}", f"{pair.bar:g}", pair.source, told, word, seconds)
        yield f"| {' | '.join(row)} |"
    known = [one for one in found if one is not None]
    yield ""
    yield f"{sum(known)} of the {len(known)} pairs that were run to a verdict reach their bar, of {len(PAIRS)} pairs."


def _told(record: Record) -> str:
    if record["failed"] is not None:
        return "diverged"
    stopped = "" if record["reason"] == "env_steps" else f" (stopped at {record['steps_done']:,})"
    return f"{record['final']:.4g}{stopped}"


def main(words: Sequence[str]) -> int:
    """Do what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="such as CartPole-v1:ppo, in order; left out, all")
    parser.add_argument("--most-seconds", type=float, default=900, help="a run is stopped then, and has not passed")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "two_lines.jsonl", help="where finished runs are kept"
    )
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    if unknown := set(asked.pairs) - {pair.name for pair in PAIRS}:
        parser.error(f"got {', '.join(sorted(unknown))}, expected some of {', '.join(pair.name for pair in PAIRS)}")
    try:
        records = read(asked.results)
        if not asked.show:
            os.nice(NICENESS)
            by_name = {pair.name: pair for pair in PAIRS}
            for pair in [by_name[name] for name in asked.pairs or by_name]:
                while (seed := missing(pair, records)) is not None:
                    append(asked.results, record := done(pair, seed, asked.most_seconds))
                    records.append(record)
                    print(f"{pair.name}, seed {seed}: {_told(record)}, bar {pair.bar:g}", flush=True)
    except (MlxeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    told = "\n".join(table(records)) + "\n"
    asked.results.with_suffix(".md").write_text(told)
    sys.stdout.write(told)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of a run is not left behind
    sys.exit(main(sys.argv[1:]))
