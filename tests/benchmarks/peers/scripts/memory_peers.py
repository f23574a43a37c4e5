"""Replay memories of the peers: rows per second sampled, or sampled and given new priorities, at CartPole's rows.

`--peer tianshou` or `--peer cpprb`; each runs where it is installed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np

ROWS, BATCH = 100_000, 256


def rows(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Transitions of CartPole's shapes."""
    return {
        "obs": rng.standard_normal((count, 4), dtype=np.float32),
        "act": rng.integers(0, 2, count),
        "rew": np.ones(count, np.float32),
        "obs_next": rng.standard_normal((count, 4), dtype=np.float32),
        "terminated": rng.random(count) < 0.01,
    }


def tianshou_memory(prioritised: bool) -> Callable[[np.ndarray], None]:
    """One sample, and its new priorities, of tianshou's buffer."""
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

    made = rows(np.random.default_rng(0), ROWS)
    memory = PrioritizedReplayBuffer(ROWS, alpha=0.6, beta=0.4) if prioritised else ReplayBuffer(ROWS)
    for k in range(ROWS):
        row = {name: column[k] for name, column in made.items()}
        memory.add(Batch(truncated=False, info={}, **row))

    def once(priorities: np.ndarray) -> None:
        _, index = memory.sample(BATCH)
        if prioritised:
            memory.update_weight(index, priorities)

    return once


def cpprb_memory(prioritised: bool) -> Callable[[np.ndarray], None]:
    """One sample, and its new priorities, of cpprb's buffer."""
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    shape = {"obs": {"shape": 4}, "act": {"dtype": np.int64}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}
    memory = PrioritizedReplayBuffer(ROWS, shape, alpha=0.6) if prioritised else ReplayBuffer(ROWS, shape)
    made = rows(np.random.default_rng(0), ROWS)
    memory.add(obs=made["obs"], act=made["act"], rew=made["rew"], next_obs=made["obs_next"], done=made["terminated"])

    def once(priorities: np.ndarray) -> None:
        if prioritised:
            memory.update_priorities(memory.sample(BATCH, beta=0.4)["indexes"], priorities)
        else:
            memory.sample(BATCH)

    return once


def rate(once: Callable[[np.ndarray], None], seconds: float, batch: int = BATCH) -> dict[str, float]:
    """Rows per second, and CPU microseconds per row, of so many seconds; every fourth of them first, not counted."""
    rng = np.random.default_rng(1)
    priorities = [rng.random(batch) + 0.01 for _ in range(64)]

    def run(limit: float) -> tuple[int, float, float]:
        began, cpu, done = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < limit:
            for priority in priorities:
                once(priority)
            done += len(priorities) * batch
        return done, time.perf_counter() - began, time.process_time() - cpu

    run(seconds / 4)
    done, wall, cpu = run(seconds)
    return {"rows_per_second": done / wall, "cpu_us_per_row": 1e6 * cpu / done, "seconds": wall}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=["tianshou", "cpprb"], required=True)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    make = {"tianshou": tianshou_memory, "cpprb": cpprb_memory}[given.peer]
    for row, prioritised in (("memory-prioritised", True), ("memory-uniform", False)):
        said = f"{ROWS:,} rows of 4 + 4 numbers, batch {BATCH}, one batch a call" + ", new priorities" * prioritised
        line = {"peer": given.peer, "version": version(given.peer), "configuration": said, "row": row}
        print(json.dumps({**line, **rate(make(prioritised), given.seconds)}), flush=True)


if __name__ == "__main__":
    main()
