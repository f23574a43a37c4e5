"""What sampling from a replay memory costs, beside the machine's limit and beside other replay memories.

    python tests/benchmarks/memory.py [--rounds 7] [--updates 1 8 64] [--largest 7] [--peers FOLDER]

The class and the calls measured are those of a run: a memorizer draws plans and settles them, a learner gathers their
minibatches with `reuse=True`. Every figure is a median over rounds in which all take turns, in millions of rows per
second of this process's CPU time; in brackets is the best round. A row is CartPole's: 13 standard columns and 2 derived
ones. What is counted:

uniform      draw a plan (different rows inside a minibatch, written with their stamps into shared memory) and gather
             each of its minibatches, all columns, into arrays that are reused, with the check that no row was replaced.
prioritised  draw a plan in proportion to priority^0.6 (stratified, with importance weights), gather as above, leave a
             new priority for each row, and take all of them up (again with the check for replaced rows): inside a plan
             priorities are as old as the plan, as in a run.
tree only    the same without the gathers.
limit        copying as many rows of as many bytes from random places of an array of that size, and one word of 8 bytes
             for each twice, 16,384 rows at a time, the places known beforehand: what the machine's memory allows.
share        uniform, as a share of that limit: if it rises with the size, what grows is the machine's own cost of
             reaching memory beyond its caches.
taken in     blocks of 2048 rows become rows of the memory, by DQN's `derive_many`, as a memorizer does it: from one
             environment, and from 256 side by side, whose episodes last 20 or 500 steps, or 32, as where a rollout's
             end cuts them. In microseconds of CPU time per row.
frames       samples of four 84 x 84 frames before and after a step (28 KB each), each frame stored once; the limit is
             copying five frames in a row from random places.

With `--peers`, the folder of virtual environments that `peers/compare.py` makes, tianshou's and cpprb's memories take
turns with ours, each in a process of its own, at 100,000 rows of their columns and a batch of 256, and at stacks of
frames; the ratio is of CPU time per row, which other programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers" / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from memory_frames import SIDE, STACK, own_memory

from mlxe_async.algorithms.dqn import DQN
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Column, RowLayout, Spaces, standard_columns

HERE = Path(__file__).parent
SCRIPTS = HERE / "peers" / "scripts"
BATCH, PLAN, BLOCK = 256, 64, 2048
PRIORITIES = np.random.default_rng(3).random((64, BATCH)) + 0.01
FRAMES, FRAME_BATCHES = 20_000, (32, 256)
PEERS = ("mlxe_async", "tianshou", "cpprb")


def filled(capacity: int, updates: int) -> ReplayMemory:
    """A memory in which every row is taken and has another priority."""
    columns = RowLayout(standard_columns(Spaces((4,), actions=2))).to_json()
    derived = RowLayout((Column("partial", "<f4"), Column("coefficient", "<f4"))).to_json()
    shape = ReplayShape(1, 1, capacity, 8, 8, BATCH, updates, columns, derived)
    buffer = np.zeros(shape.nbytes, np.uint8)
    buffer[shape.offset("staging") :] = 1  # touched before anything is timed
    memory = ReplayMemory(shape, buffer)
    memory._books.head[:] = capacity
    memory._ring["stamp"][:] = np.arange(1, capacity + 1)
    memory._ring["left"][:] = 1
    memory._ring["priority"][:] = np.random.default_rng(1).random(capacity) + 0.01
    return memory


def uniform(memory: ReplayMemory, updates: int) -> None:
    plan = memory.draw(0, updates, BATCH)
    for k in range(updates):
        memory.gather(plan, k, reuse=True)


def prioritised(memory: ReplayMemory, updates: int, *, gathers: bool = True) -> None:
    plan, everywhere = memory.draw(0, updates, BATCH, exponent=0.6, beta=0.4), np.arange(BATCH)
    for k in range(updates):
        if gathers:
            memory.gather(plan, k, reuse=True)
        memory.note_priorities(plan, k, everywhere, PRIORITIES[k % len(PRIORITIES)])
    memory.settle(plan)


def taking_in(envs: int, length: int) -> Callable[[], None]:
    """Take in one block after the other, of so many environments and episodes of so many steps."""
    spaces, rng = Spaces((4,), actions=2), np.random.default_rng(4)
    algorithm = DQN(DQN.Settings(), spaces, seed=0, learns=False)
    layout, derived = RowLayout(standard_columns(spaces)), RowLayout(algorithm.derived_columns)
    capacity = max(BLOCK * 64 // envs, 1)
    shape = ReplayShape(
        1,
        envs,
        capacity,
        min(capacity, 500),
        BLOCK,
        BATCH,
        PLAN,
        layout.to_json(),
        derived.to_json(),
        prioritised=False,
    )
    memory, steps, first = ReplayMemory(shape, np.zeros(shape.nbytes, np.uint8)), BLOCK // envs, np.arange(envs) * 7
    kept = {name: np.ones_like(column) for name, column in layout.empty(BLOCK).items()}
    kept["env"][:] = np.tile(np.arange(envs), steps)
    for name in ("obs", "next_obs", "reward"):
        kept[name][:] = rng.random(kept[name].shape)
    number = [0]

    def take_in() -> None:
        # Environments begin at different steps, so that their episodes end one by one.
        clock = (first + (number[0] * steps + np.arange(steps))[:, None]).ravel()
        kept["episode"][:], kept["step"][:] = clock // length, clock % length
        kept["terminated"][:], kept["truncated"][:], kept["cut"][:] = kept["step"] == length - 1, 0, 0
        memory.ingest(0, number[0], 1, kept, algorithm.derive, drop_open=True, derive_many=algorithm.derive_many)
        number[0] += 1

    return take_in


def limit(memory: ReplayMemory) -> Callable[[], None]:
    """Copy random rows and words of the memory, nothing else."""
    shape, rng = memory.shape, np.random.default_rng(2)
    words = shape.payload.rows(memory._buffer, shape.capacity, shape.offset("ring"))
    index = [rng.integers(0, shape.capacity, PLAN * BATCH) for _ in range(16)]
    rows, stamps = np.ones((PLAN * BATCH, words.shape[1]), np.uint64), np.ones(PLAN * BATCH, np.int64)
    number = [0]

    def copy() -> None:
        number[0] += 1
        where = index[number[0] % len(index)]
        np.take(memory._ring["stamp"], where, out=stamps, mode="clip")
        np.take(words, where, axis=0, out=rows, mode="clip")
        np.take(memory._ring["stamp"], where, out=stamps, mode="clip")

    return copy


def frame_limit(batch: int) -> Callable[[], None]:
    """Copy five frames in a row from random places, nothing else."""
    store, rng = np.ones((FRAMES, SIDE * SIDE), np.uint8), np.random.default_rng(2)
    first = rng.integers(0, FRAMES - STACK, (64, batch, 1))
    index = (first + np.arange(STACK + 1)).reshape(64, -1)
    out, number = np.ones((index.shape[1], SIDE * SIDE), np.uint8), [0]

    def copy() -> None:
        number[0] += 1
        np.take(store, index[number[0] % len(index)], axis=0, out=out, mode="clip")

    return copy


def rate(work: Callable[[], None], rows: int, seconds: float = 0.05) -> float:
    """Rows per second of CPU time."""
    done, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        work()
        done += rows
    return done / spent


def rounds_of(works: dict[int, Callable[[], None]], rows: int, rounds: int) -> list[list[float]]:
    """Millions of rows per second of each, taking turns."""
    seen: dict[int, list[float]] = {size: [] for size in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for size, work in works.items():
            seen[size].append(rate(work, rows) / 1e6)
    return list(seen.values())


def told(title: str, columns: list[list[float]]) -> None:
    cells = [f"{statistics.median(r):6.2f} ({max(r):5.2f})" for r in columns]
    print(f"{title:34s}" + " ".join(cells), flush=True)


def tell_sizes(asked: argparse.Namespace) -> None:
    sizes = [10**e for e in range(4, asked.largest + 1)]
    memories = {size: filled(size, max(PLAN, *asked.updates)) for size in sizes}
    print(f"{'memory of rows':34s}" + " ".join(f"{size:>14,}" for size in sizes))
    for updates in asked.updates:
        for name, work in (
            ("uniform", uniform),
            ("prioritised", prioritised),
            ("tree only", lambda m, k: prioritised(m, k, gathers=False)),
        ):
            works = {size: (lambda m=m, work=work, k=updates: work(m, k)) for size, m in memories.items()}
            told(f"{name}, {updates} in a plan", rounds_of(works, updates * BATCH, asked.rounds))
    ours, most = {}, {}
    for size, memory in memories.items():  # in turns, one beside the other
        works = {0: (lambda m=memory: uniform(m, PLAN)), 1: limit(memory)}
        ours[size], most[size] = rounds_of(works, PLAN * BATCH, asked.rounds)
    told("limit", list(most.values()))
    share = {size: statistics.median(a / b for a, b in zip(ours[size], most[size], strict=True)) for size in sizes}
    print(f"{f'share, {PLAN} in a plan':34s}" + " ".join(f"{share[size]:14.0%}" for size in sizes))
    beyond = {size: 1e3 / statistics.median(ours[size]) - 1e3 / statistics.median(most[size]) for size in sizes}
    print(f"{'ns per row beside the limit':34s}" + " ".join(f"{beyond[size]:14.0f}" for size in sizes), flush=True)


def tell_ingest(asked: argparse.Namespace) -> None:
    print("\ntaken in, microseconds of CPU time per row, median (best)")
    cases = {(envs, length): taking_in(envs, length) for envs in (1, 256) for length in (20, 500, 32)[: 2 + (envs > 1)]}
    seen = rounds_of(dict(enumerate(cases.values())), BLOCK, asked.rounds)
    for (envs, length), rates in zip(cases, seen, strict=True):
        cells = f"{1 / statistics.median(rates):6.2f} ({1 / max(rates):5.2f})"
        print(f"{f'{envs} environments, episodes of {length}':34s}{cells}", flush=True)


def tell_frames(asked: argparse.Namespace) -> None:
    print(f"\n{FRAMES:,} frames of {SIDE} x {SIDE}, stacks of {STACK} before and after a step, thousands of samples/s")
    for batch in FRAME_BATCHES:
        memory, nothing = own_memory(FRAMES, batch), np.zeros(batch)
        works = {0: (lambda once=memory, nothing=nothing: once(nothing)), 1: frame_limit(batch)}
        ours, most = rounds_of(works, batch, asked.rounds)
        cells = [f"{1e3 * statistics.median(r):5.0f} ({1e3 * max(r):4.0f})" for r in (ours, most)]
        share = statistics.median(a / b for a, b in zip(ours, most, strict=True))
        print(f"batch {batch}: {cells[0]}, limit {cells[1]}, share {share:.0%}", flush=True)


def tell_peers(asked: argparse.Namespace) -> None:
    seen: dict[str, dict[str, list[float]]] = {}
    for _ in range(asked.peer_rounds):
        for peer in PEERS:
            own = peer == "mlxe_async"
            python = sys.executable if own else str(asked.peers / peer / "bin" / "python")
            plain = ["memory_ours.py"] if own else ["memory_peers.py", "--peer", peer]
            for script, *more in (plain, ["memory_frames.py", "--peer", peer]):
                command = [python, str(SCRIPTS / script), *more, "--seconds", str(asked.seconds)]
                path = {"PYTHONPATH": str(HERE.parents[1])} if own else {"PYTHONPATH": ""}
                done = subprocess.run(
                    command, env={**os.environ, **path}, stdout=subprocess.PIPE, text=True, check=True, timeout=600
                )
                for line in map(json.loads, done.stdout.splitlines()):
                    seen.setdefault(line["row"], {}).setdefault(peer, []).append(1 / line["cpu_us_per_row"])
    print(f"\n{'million rows/s of CPU time':34s}" + " ".join(f"{peer:>12s}" for peer in PEERS) + "   ratio to the best")
    for row, rates in seen.items():
        medians = {peer: statistics.median(some) for peer, some in rates.items()}
        best = max(value for peer, value in medians.items() if peer != "mlxe_async")
        cells = " ".join(f"{medians[peer]:12.3f}" for peer in PEERS)
        print(f"{row:34s}{cells}   {medians['mlxe_async'] / best:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--largest", type=int, default=7, help="exponent of ten")
    parser.add_argument("--peers", type=Path, help="folder with virtual environments tianshou and cpprb")
    parser.add_argument("--peer-rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement of a peer")
    asked = parser.parse_args()
    print(f"numpy {np.__version__}, batch {BATCH}; million rows/s of CPU time, median (best) of {asked.rounds}")
    tell_ingest(asked)
    tell_sizes(asked)
    tell_frames(asked)
    if asked.peers:
        tell_peers(asked)


if __name__ == "__main__":
    main()
