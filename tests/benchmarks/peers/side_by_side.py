"""Learning beside others: `python tests/benchmarks/peers/side_by_side.py --venvs FOLDER [--rows ...] [--seeds 3]`.

The same task, seeds, network, steps and updates a step for all: this package, stable-baselines3, and for SAC and TD3
a loop as CleanRL's single files have it, the same compiled as LeanRL does it, and SBX, stable-baselines3's sibling in
JAX. They run one after the other, A B C A B C, each in a fresh process. All learn in `--threads` threads; SBX in as
many as there are cores. Of SAC and TD3 ours acts in a process of its own: beside the learner (`oa`: it delivers eight
steps at a time and waits while sixteen updates are owed), or by turns with it (`is`: 32 steps, then as many updates).
Each finished run is a line of `results/side_by_side.jsonl`: what is there is not run again, so the command may be
stopped at any time, and goes on with other runs on another processor. The table is kept beside it as
`side_by_side.md`; `--show` runs nothing. Told are the median seconds of learning on each processor, our share of
theirs, by `is` where that was run, and the mean of the returns with its 95 % bootstrap interval over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "scripts"))

import compare
from kept import processor
from tasks_to_learn import ROWS

from mlxe_async.analysis.statistics import bootstrap, means

FIRST_SEED = 2000
KEPT = Path(__file__).parents[1] / "results" / "side_by_side.jsonl"
HEAD = ("task", "processor", "who", "seeds", "seconds of learning", "ours / theirs", "return", "95 %")
OURS, BY_TURNS = "mlxe_async", "mlxe_async, is"
EARLIER = "AMD EPYC"  # of lines that do not name theirs
Line = dict[str, Any]


def contestants(row: str) -> list[compare.Contestant]:
    """Who runs for a row, ourselves first; the folder of the others' packages is made by the first call."""
    ppo = ROWS[row].algorithm == "ppo"
    venv = "continuous" if ppo else "sbx"  # which has stable-baselines3, too
    found = [compare.Contestant(OURS, None, "learn_ours.py")]
    found.append(compare.Contestant("stable-baselines3", venv, "learn_sb3.py"))
    if not ppo:
        found.insert(1, compare.Contestant(BY_TURNS, None, "learn_ours.py", ["--schedule", "is"]))
        found.append(compare.Contestant("cleanrl-loop", venv, "learn_loop.py"))
        found.append(compare.Contestant("leanrl-loop", venv, "learn_loop.py", ["--compile"]))
        found.append(compare.Contestant("sbx", venv, "learn_sbx.py"))
    return found


def read(path: Path) -> list[Line]:
    """The runs that are kept; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def complete(rows: Sequence[str], seeds: int, given: argparse.Namespace) -> None:
    """Do the runs that are not kept yet, and keep each."""
    for row in rows:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            for one in contestants(row):
                of_ours = {OURS: "oa", BY_TURNS: "is"}.get(one.name)
                if of_ours and of_ours not in given.schedules.split(",") and ROWS[row].algorithm != "ppo":
                    continue
                if given.peers and one.name.partition(",")[0] not in given.peers.split(","):
                    continue
                if (row, seed, one.name, processor()) in {
                    (line["row"], line["seed"], line["peer"], line.get("processor", EARLIER))
                    for line in read(given.kept)
                }:
                    continue
                words = ["--row", row, "--seed", str(seed), "--threads", str(given.threads)]
                line = compare.run(one, given.venvs, words, given.limit)[-1]
                if "error" in line:
                    raise SystemExit(f"{row}, seed {seed}, {one.name}: {line['error']}")
                line |= {"threads": given.threads, "processor": processor()}
                with given.kept.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                told = f"{line['seconds']:.1f} s, return {line['reached']:.1f}, others {100 * line['others']:.0f} %"
                print(f"{row}, seed {seed}, {one.name}: {told}", file=sys.stderr, flush=True)


def table(lines: Sequence[Line]) -> list[str]:
    """Markdown: each task's contestants below each other."""
    rows = [HEAD, ("---",) * len(HEAD)]
    found = dict.fromkeys((line["row"], line.get("processor", EARLIER)) for line in lines)
    for row, where in sorted(found, key=lambda pair: [*ROWS].index(pair[0])):
        of_row = [line for line in lines if (line["row"], line.get("processor", EARLIER)) == (row, where)]
        own = [line["seconds"] for line in of_row if line["peer"] == BY_TURNS]
        own = own or [line["seconds"] for line in of_row if line["peer"] == OURS]
        for peer in dict.fromkeys(line["peer"] for line in of_row):
            mine = [line for line in of_row if line["peer"] == peer]
            seconds, returns = [line["seconds"] for line in mine], [line["reached"] for line in mine]
            low, high = bootstrap(returns, means)
            compiled = [line["seconds"] - line.get("compiling_seconds", 0.0) for line in mine]
            for what, took in {"": seconds, ", compiling left out": compiled}.items():
                if what and compiled == seconds:
                    continue
                median = statistics.median(took)
                share = f"{statistics.median(own) / median:.2f}" if own and peer not in (OURS, BY_TURNS) else ""
                rows.append(
                    (
                        f"{row}, {ROWS[row].steps:,} steps",
                        where,
                        f"{peer} {mine[-1]['version']}{what}",
                        str(len(mine)),
                        f"{median:.1f} ({min(took):.1f} to {max(took):.1f})",
                        share,
                        f"{statistics.fmean(returns):.1f}",
                        f"{low:.1f} to {high:.1f}",
                    )
                )
    return [f"| {' | '.join(cells)} |" for cells in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, default=compare.ROOT / ".tox" / "peers-venvs", help="of the others")
    parser.add_argument("--rows", default=",".join(ROWS), help="which, with commas between")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--threads", type=int, default=1, help="in which all but SBX learn")
    parser.add_argument("--peers", default="", help="only these contestants, with commas between")
    parser.add_argument("--schedules", default="oa,is", help="by which ours learns SAC and TD3")
    parser.add_argument("--limit", type=float, default=3000.0, help="seconds after which a run is given up")
    parser.add_argument("--kept", type=Path, default=KEPT, help="where finished runs are kept")
    parser.add_argument("--show", action="store_true", help="run nothing")
    given = parser.parse_args()
    rows = given.rows.split(",")
    if unknown := set(rows) - set(ROWS):
        parser.error(f"--rows: expected some of {', '.join(ROWS)}, got {', '.join(sorted(unknown))}")
    if not given.show:
        given.venvs = given.venvs.resolve()
        complete(rows, given.seeds, given)
    told = "\n".join(table(read(given.kept))) + "\n"
    given.kept.with_suffix(".md").write_text(told)
    sys.stdout.write(told)


if __name__ == "__main__":
    main()
