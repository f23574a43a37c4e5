"""What sampling from a replay memory costs: rows per second of CPU time, for memories of 10^4 to 10^7 rows.

    python tests/benchmarks/memory.py [--rounds 7] [--updates 64] [--largest 7]

A row is CartPole's: 13 standard columns and 2 derived ones. Every figure is the median over rounds in which all sizes
take turns, of rows per second of this process's CPU time; in brackets is the best round. What is counted:

uniform      draw a plan (different rows inside a minibatch, written with their stamps into shared memory) and gather
             each of its minibatches, all columns, into arrays that are reused, with the check that no row was replaced.
prioritised  draw a plan in proportion to priority^0.6 (stratified, with importance weights), gather as above, leave a
             new priority for each row, and take all of them up (again with the check for replaced rows).
tree only    the same without the gathers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from mlxe_async.memory.replay import ReplayMemory, ReplayShape
from mlxe_async.rows import Column, RowLayout, Spaces, standard_columns

BATCH = 256
PRIORITIES = np.random.default_rng(3).random((64, BATCH)) + 0.01


def filled(capacity: int, updates: int) -> ReplayMemory:
    """A memory in which every row is taken and has another priority."""
    columns = RowLayout(standard_columns(Spaces((4,), actions=2))).to_json()
    derived = RowLayout((Column("partial", "<f4"), Column("coefficient", "<f4"))).to_json()
    shape = ReplayShape(1, 1, capacity, 8, 8, BATCH, updates, columns, derived)
    buffer = np.zeros(shape.nbytes, np.uint8)
    buffer[shape.offset("staging") :] = 1  # touched before anything is timed
    memory = ReplayMemory(shape, buffer)
    memory._head[:] = capacity
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


def rate(work: Callable[[], None], rows: int, seconds: float = 0.05) -> float:
    """Rows per second of CPU time."""
    done, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        work()
        done += rows
    return done / spent


def table(title: str, works: dict[int, Callable[[], None]], rows: int, rounds: int) -> None:
    seen: dict[int, list[float]] = {size: [] for size in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for size, work in works.items():
            seen[size].append(rate(work, rows) / 1e6)
    cells = [f"{statistics.median(r):6.2f} ({max(r):5.2f})" for r in seen.values()]
    print(f"{title:34s}" + " ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--largest", type=int, default=7, help="exponent of ten")
    asked = parser.parse_args()
    sizes = [10**e for e in range(4, asked.largest + 1)]
    memories = {size: filled(size, max(asked.updates)) for size in sizes}
    print(f"numpy {np.__version__}, batch {BATCH}; million rows/s of CPU time, median (best) of {asked.rounds}")
    print(f"{'memory of rows':34s}" + " ".join(f"{size:>14,}" for size in sizes))
    for updates in asked.updates:
        for name, work in (
            ("uniform", uniform),
            ("prioritised", prioritised),
            ("tree only", lambda m, k: prioritised(m, k, gathers=False)),
        ):
            works = {size: (lambda m=m, work=work, k=updates: work(m, k)) for size, m in memories.items()}
            table(f"{name}, {updates} in a plan", works, updates * BATCH, asked.rounds)


if __name__ == "__main__":
    main()
