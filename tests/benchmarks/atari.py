"""Atari steps per second that were learned from: `python tests/benchmarks/atari.py [FILE] [seconds]`.

Runs the command as a user would, tests switched off, each row learned from once (`ONE_PASS`), in float32 and in
bfloat16 by turns (A B A B), and counts the rows that entered an update between the end of the first one and the end
of the last one, each once; the medians are told.
The machine's limit is what its cores together could do if they did nothing but step the games, evaluate the network and
differentiate the loss, each measured bare, in this process, right before and after the runs: the least CPU time of a
few repeats. Other programs on the machine make everything slower: the column `others` says how much of it they took;
`CPU/row`, in microseconds, is CPU time of all processes of the run per row, which they disturb less.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import statistics
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from rate import ROOT, best, differentiate, run

from mlxe_async.networks import Precision
from mlxe_async.networks.bodies import Body
from mlxe_async.networks.convolutions import convolved
from mlxe_async.networks.dense import dense
from mlxe_async.networks.heads import ActorCritic
from mlxe_async.rows import WHOLE, Spaces
from mlxe_async.settings import load_settings
from mlxe_async.tasks import atari

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
ONE_PASS = {
    "algorithm.epochs": "1",
    "schedule.envs_per_executor": "32",
    "schedule.rollout_steps": "16",
    "schedule.max_policy_lag": "8",
    "memory.lane_slots": "8",
}
"""Each row is learned from once, by many games at a time: what is fastest is not what learns most of each step."""


def stepping_cost(settings: Any) -> float:
    """CPU microseconds of a step of one game among as many as an executor has, all by one call."""
    count, task = settings.schedule.envs_per_executor, settings.task
    atari.provide(task.env)
    kwargs = atari.vector_kwargs(task.atari, task.kwargs, None)
    vector = gymnasium.make_vec(task.env, count, vectorization_mode="vector_entry_point", **kwargs).unwrapped
    vector.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, vector.single_action_space.n, (40, count))

    def stepping() -> int:
        for action in actions:
            vector.step(action)
        return actions.size

    cost = best(stepping)
    vector.close()
    return cost


def network_costs(settings: Any, precision: Precision, rows: int) -> dict[str, float]:
    """CPU microseconds per row of choosing, as many at a time as an executor has games, and of differentiating."""
    import torch

    torch.set_num_threads(1)
    table, count = settings.algorithm.table, settings.schedule.envs_per_executor
    image, rng = (settings.task.atari.stack, atari.SIDE, atari.SIDE), np.random.default_rng(0)
    seen = rng.integers(0, 256, (max(rows, count), *image), dtype=np.uint8)
    eyes = convolved(table["body"], image, scale=1 / 255, precision=precision)
    see, common = Body(Spaces(image, "|u1", 6), {WHOLE: eyes}), dense(eyes.outputs, tuple(table.get("common", ())))
    learning = ActorCritic(see, common, dense(common.outputs, (), 6), dense(common.outputs, (), 1))
    for one in (common, learning.actor, learning.critic):
        one.precision = "bfloat16" if precision == "bfloat16" else "float32"
    pictures, action, advantage = torch.from_numpy(seen[:rows]), torch.randint(0, 6, (rows,)), torch.randn(rows)

    def choosing() -> int:
        for _ in range(5):
            learning.scores(seen[:count])
        return 5 * count

    def differentiating() -> int:
        differentiate(learning, pictures, action, advantage)
        return rows

    return {"choose": best(choosing), "learn": best(differentiating)}


def costs_of(settings: Any) -> dict[str, dict[str, float]]:
    """The bare costs for each precision."""
    step, rows = stepping_cost(settings), settings.algorithm.table["minibatch"]
    return {name: {"step": step, **network_costs(settings, name, rows)} for name in PRECISIONS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default=str(ROOT / "settings" / "pong.toml"))
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each precision")
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="only this one")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as the command takes it")
    given = parser.parse_args()
    precisions = tuple(given.precision or PRECISIONS)
    extra = {**ONE_PASS, **dict(pair.split("=", 1) for pair in given.set)}
    settings = load_settings(Path(given.file), [f"{key}={value}" for key, value in extra.items()])
    cores, before = os.cpu_count() or 1, costs_of(settings)
    rates: dict[str, list[float]] = {name: [] for name in precisions}
    print(f"{'':10} {'steps/s':>8} {'CPU/row':>8} {'lag':>6} {'max':>4} {'dropped':>8} {'episode':>8} {'others':>7}")
    for _ in range(given.rounds):
        for name in precisions:
            found = run(given.file, given.seconds, **{"algorithm.precision": f'"{name}"', **extra})
            rates[name].append(found["rate"])
            print(
                f"{name:10} {found['rate']:8,.0f} {sum(found['cpu_row'].values()):8.0f} {found['lag_mean']:6.2f}"
                f" {found['lag_max']:4} {100 * found['dropped'] / found['generated']:6.1f} %"
                f" {found['episode_length']:8.0f} {100 * found['others']:5.0f} %",
                flush=True,
            )
            shares = ", ".join(f"{process} {100 * share:.0f}" for process, share in found["cpu"].items())
            each = ", ".join(f"{process} {cost:.0f}" for process, cost in found["cpu_row"].items())
            print(f"    of one core, %: {shares}\n    CPU us/row: {each}", flush=True)
            if len(found["minutes"]) > 1:
                minutes = " ".join(f"{rate:,.0f}" for rate in found["minutes"])
                print(f"    steps/s of each minute: {minutes}", flush=True)
    after = costs_of(settings)
    for name in precisions:
        costs = {what: min(cost, after[name][what]) for what, cost in before[name].items()}
        limit, rate = cores * 1e6 / sum(costs.values()), statistics.median(rates[name])
        bare = ", ".join(f"{what} {cost:.0f}" for what, cost in costs.items())
        print(
            f"{name:10} median {rate:,.0f}/s of {limit:,.0f}/s: {100 * rate / limit:.0f} % (bare, CPU us/row: {bare})"
        )


if __name__ == "__main__":
    main()
