"""Where the time of full-rate runs goes, one of each family: `python tests/benchmarks/profile_runs.py [seconds]`.

ppo learns CartPole by `settings/fast.toml` (native environments, 2 x 512, `oa`); mlxe and dqn play so and replay:
mlxe learns from each row some three times, dqn once. For each process: the share of the time between the first and the
last update in which it was at work by its own account, and of CPU; executors besides waited for room in their lane, all
others for something to do. Of the rest of an executor's time, `step`, `choose` and `rows` are what stepping and
choosing cost when measured bare right after the run, in microseconds of CPU per row, and what remains. The limit is all
cores doing nothing but step, choose and update, each row as often as it was learned from, where an update is what torch
takes for the gradient of the family's loss, and for the values that its targets ask for: one network for mlxe, two of
them for dqn. What bounds a run is whoever was at work most, or the cores where all of them are taken.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import statistics
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rate import ONE_PASS, ROOT, actor_critic, bare_costs, best, differentiate, measured, watched

from mlxe_async.networks.dense import dense
from mlxe_async.settings import load_settings

COMMON = 'common = [64, 64]\npolicy = []\nvalue = []\nactivation = "tanh"\nnormalise = false\n'
ROWS = 40_960  # of one rollout: 512 environments, 80 steps each
OTHERS = {
    # Step sizes by which they learn: policies that stay poor have many short episodes, each a line of the log.
    "mlxe": 'updates_per = "iteration"\nmin_updates = 8\nbatch = 2048\nlearning_rate_decay = 1.0\n' + COMMON,
    "dqn": 'train_every = 2048\nbatch = 2048\nlayers = [64, 64]\nactivation = "tanh"\ndiscount = 0.98\n'
    "target_every = 32\nlearning_rate = 3e-3\nlearning_rate_last = 3e-3\n",
}
WHILE = {name: value for name, value in ONE_PASS.items() if name != "algorithm.epochs"} | {"stop.env_steps": 10**12}


def settings_file(family: str, folder: str) -> Path:
    """`settings/fast.toml`, or the same with another algorithm."""
    fast = ROOT / "settings" / "fast.toml"
    if family not in OTHERS:
        return fast
    text = fast.read_text()
    before, after = text.split("[algorithm]")[0], "[learner]" + text.split("[learner]")[1]
    # These replay: rows may be old, and many minibatches are owed at a time.
    before = before.replace("max_policy_lag = 8", "").replace("max_owed_updates = 2", "max_owed_updates = 16")
    before = before.replace('kind = "oa"', f'kind = "oa"\nupdates_per_publish = {ROWS // 2048}')
    after = after.replace("[memory]", "[memory]\ncapacity_rows = 262144")
    file = Path(folder) / f"{family}.toml"
    file.write_text(f'{before}[algorithm]\nname = "{family}"\n{OTHERS[family]}{after}')
    return file


def run(family: str, seconds: float) -> tuple[dict[str, Any], list[dict[str, Any]], Any]:
    """One run of the command: what its samples and its log say, and its settings."""
    with tempfile.TemporaryDirectory() as folder:
        file = settings_file(family, folder)
        lines, samples = watched(str(file), folder, seconds, {**WHILE, "stop.seconds": seconds})
        return measured(lines, samples), lines, load_settings(file, {})


def at_work(lines: list[dict[str, Any]]) -> tuple[float, dict[str, float], dict[str, float]]:
    """Rows generated in a second, share of the time at work by role, and share waited for a lane by executor."""
    updates = [line for line in lines if line.get("phase") == "learn" and line["updates"]]
    since, until = updates[0]["start_ns"], updates[-1]["start_ns"] + round(updates[-1]["seconds"] * 1e9)
    share: dict[str, float] = {}
    waited: dict[str, float] = {}
    rows = 0
    for line in lines:
        if line["event"] != "phase" or not since <= line["start_ns"] < until:
            continue
        who = line["phase"] if line["idx"] is None else f"executor-{line['idx']}"
        lane = line["waits"].get("lane", 0.0)
        share[who] = share.get(who, 0.0) + (line["seconds"] + line.get("ingest_seconds", 0.0) - lane) * 1e9 / (
            until - since
        )
        if line["phase"] == "generate":
            waited[who] = waited.get(who, 0.0) + lane * 1e9 / (until - since)
            rows += line["rows"]
    return rows * 1e9 / (until - since), share, waited


def between_plans(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Median milliseconds from the end of an update to the next look for rows, and from there to the next update."""
    ends: dict[str, float] = {}
    found: dict[str, list[float]] = {"learn to memorize": [], "memorize to learn": []}
    for line in sorted((x for x in lines if x.get("phase") in ("learn", "memorize")), key=lambda x: x["start_ns"]):
        other = "memorize" if line["phase"] == "learn" else "learn"
        if other in ends:
            found[f"{other} to {line['phase']}"].append(line["start_ns"] / 1e6 - ends[other])
        ends = {line["phase"]: line["start_ns"] / 1e6 + 1e3 * line["seconds"]}
    return {name: statistics.median(gaps) for name, gaps in found.items() if gaps}


def update_cost(family: str, settings: Any, batch: int = 2048) -> float:
    """CPU microseconds per row of an update by torch: its gradient, and before that the values of the targets."""
    import torch

    torch.set_num_threads(1)
    table, replays = settings.algorithm.table, family in OTHERS
    activation = torch.nn.Tanh if table["activation"] == "tanh" else torch.nn.ReLU
    learned, target = (
        dense(4, table["layers"], 2, activation, layer_norm=True) if family == "dqn" else actor_critic(table)
        for _ in range(2)
    )
    rows, action, goal = torch.randn(batch, 4), torch.randint(0, 2, (batch,)), torch.randn(batch)

    def updating() -> int:
        for _ in range(5):
            with torch.no_grad():
                for judge in (learned, target) if family == "dqn" else (learned,) if replays else ():
                    judge(rows) if family == "dqn" else judge.value_of(rows)
            if family != "dqn":
                differentiate(learned, rows, action, goal)
                continue
            values = learned(rows)
            learned.zero_grad()
            torch.autograd.backward((values.gather(-1, action[:, None])[:, 0] - goal).square().mean())
        return 5 * batch

    return best(updating, 20)


def bound_of(share: dict[str, float], cpu: dict[str, float]) -> str:
    """In a few words."""
    cores = os.cpu_count() or 1
    learner = sum(share.get(phase, 0.0) for phase in ("memorize", "learn", "publish"))
    playing = [value for name, value in share.items() if name.startswith("executor")]
    if sum(cpu.values()) > 0.9 * cores:
        return "the cores"
    return "the learner" if learner > sum(playing) / len(playing) else "the executors"


def tell(family: str, seconds: float) -> None:
    found, lines, settings = run(family, seconds)
    # Executors choose by an actor on the same hidden layers in all families.
    layers = {"common": (64, 64), "policy": (), "value": (), "activation": "tanh"}
    bare = SimpleNamespace(schedule=settings.schedule, task=settings.task, algorithm=SimpleNamespace(table=layers))
    costs = bare_costs(bare, native=True, batch=2048)
    rate, share, waited = at_work(lines)
    update = update_cost(family, settings)
    per_row = costs["step"] + costs["choose"] + update * found["rate"] / rate
    limit = (os.cpu_count() or 1) * 1e6 / per_row
    print(f"{family}: {rate:,.0f} rows/s generated, {found['rate']:,.0f} learned; limit {limit:,.0f}"
          f" ({100 * rate / limit:.0f} %); bound by {bound_of(share, found['cpu'])};"
          f" other programs took {100 * found['others']:.0f} % of the machine")  # fmt: skip
    print("  at work, %       " + ", ".join(f"{who} {100 * value:.0f}" for who, value in sorted(share.items())))
    print("  waited, lane, %  " + ", ".join(f"{who} {100 * value:.0f}" for who, value in sorted(waited.items())))
    print("  CPU, % of a core " + ", ".join(f"{who} {100 * value:.1f}" for who, value in sorted(found["cpu"].items())))
    print("  nobody learns, ms " + ", ".join(f"{name} {gap:.2f}" for name, gap in between_plans(lines).items()))
    spent = {who: 1e6 * value / rate for who, value in sorted(found["cpu"].items())}
    print("  CPU, us/row      " + ", ".join(f"{who} {value:.3f}" for who, value in spent.items()))
    playing = sum(value for who, value in spent.items() if who.startswith("mlxe-exe"))
    rest = playing - costs["step"] - costs["choose"]
    print(f"  an executor's    step {costs['step']:.2f}, choose {costs['choose']:.2f}, rows {rest:.2f} us/row;"
          f" bare update {update:.2f} us/row", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=40.0)
    parser.add_argument("--only", default="", help="families whose name contains this")
    given = parser.parse_args()
    for family in ("ppo", *OTHERS):
        if given.only in family:
            tell(family, given.seconds)


if __name__ == "__main__":
    main()
