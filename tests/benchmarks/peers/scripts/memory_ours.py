"""The replay memory of this package: rows per second, as `memory_peers.py` counts them, at the same rows.

A plan of minibatches is drawn, each is gathered and given new priorities, and these are taken up when the plan is
settled: what keeper and learner do between them, in one process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np
from memory_peers import BATCH, ROWS, rate, rows

import mlxe_async
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Column, RowLayout

BLOCK, UPDATES, EPISODE = 1000, 64, 100
COLUMNS = RowLayout(
    (
        Column("obs", "<f4", (4,)),
        Column("act", "<i8"),
        Column("rew", "<f4"),
        Column("obs_next", "<f4", (4,)),
        Column("terminated", "|u1"),
        Column("truncated", "|u1"),
        Column("cut", "|u1"),
        Column("env", "<i4"),
        Column("episode", "<i8"),
        Column("step", "<i4"),
    )
)


def filled() -> ReplayMemory:
    """A memory full of rows, in episodes of 100."""
    shape = ReplayShape(1, 1, ROWS, EPISODE, BLOCK, BATCH, UPDATES, COLUMNS.to_json(), [])
    memory = ReplayMemory(shape, bytearray(shape.nbytes))
    made, rng = rows(np.random.default_rng(0), ROWS), np.arange(ROWS)
    made |= {
        "terminated": (rng % EPISODE == EPISODE - 1).astype(np.uint8),
        "truncated": np.zeros(ROWS, np.uint8),
        "cut": np.zeros(ROWS, np.uint8),
        "env": np.zeros(ROWS, np.int32),
        "episode": rng // EPISODE,
        "step": (rng % EPISODE).astype(np.int32),
    }
    for number in range(ROWS // BLOCK):
        block = {name: column[number * BLOCK : (number + 1) * BLOCK] for name, column in made.items()}
        memory.ingest(0, number, 1, block, lambda _: {}, drop_open=False)
    return memory


def sampling(prioritised: bool) -> Callable[[np.ndarray], None]:
    """One sample, and its new priorities; every 64th call draws the plan of the next 64, and settles the last one."""
    memory = filled()
    if len(memory) != ROWS:
        raise RuntimeError(f"filling the memory: expected {ROWS} rows that can be drawn, got {len(memory)}")
    how = {"exponent": 0.6, "beta": 0.4} if prioritised else {}
    state = {"plan": memory.draw(0, UPDATES, BATCH, **how), "next": 0}

    def once(priorities: np.ndarray) -> None:
        if state["next"] == UPDATES:
            if prioritised:
                memory.settle(state["plan"])
            state["plan"], state["next"] = memory.draw(0, UPDATES, BATCH, **how), 0
        _, positions = memory.gather(state["plan"], state["next"], reuse=True)
        if prioritised:
            memory.note_priorities(state["plan"], state["next"], positions, priorities[positions])
        state["next"] += 1

    return once


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    for row, prioritised in (("memory-prioritised", True), ("memory-uniform", False)):
        said = f"{ROWS:,} rows of 4 + 4 numbers, batch {BATCH}, plans of {UPDATES}" + ", new priorities" * prioritised
        line = {"peer": "mlxe_async", "version": mlxe_async.__version__, "configuration": said, "row": row}
        print(json.dumps({**line, **rate(sampling(prioritised), given.seconds)}), flush=True)


if __name__ == "__main__":
    main()
