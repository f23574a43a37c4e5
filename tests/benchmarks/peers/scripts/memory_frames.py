"""Replay memories that store each 84 x 84 frame once: samples per second of stacks of four, before and after a step.

`--peer mlxe_async`, `tianshou` or `cpprb`; each runs where it is installed. A sample has the observation, the next one,
action, reward and end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from memory_peers import rate

SIDE, STACK, EPISODE = 84, 4, 500


def pictures(rng: np.random.Generator, count: int) -> np.ndarray:
    """Frames (count, 84, 84), each another one."""
    first = rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
    return first + np.arange(count, dtype=np.uint8)[:, None, None]


def stacks(frames: np.ndarray) -> np.ndarray:
    """Stacks (n + 1, 4, 84, 84) of an episode's frames (n + 1, 84, 84), the first one repeated."""
    last = np.arange(len(frames))[:, None]
    return frames[np.maximum(last + np.arange(1 - STACK, 1), 0)]


def own_memory(rows: int, batch: int) -> Callable[[np.ndarray], None]:
    """One sample of this package's memory; every 16th call draws the plan of the next 16."""
    from mlxe_async.memory.replay import ReplayMemory
    from mlxe_async.memory.shape import ReplayShape
    from mlxe_async.rows import RowLayout, Spaces, standard_columns

    updates, block = 16, 100
    columns = RowLayout(standard_columns(Spaces((STACK, SIDE, SIDE), "|u1", actions=6)))
    shape = ReplayShape(1, 1, rows, EPISODE, block, batch, updates, columns.to_json(), [], prioritised=False, frames=4)
    memory, rng = ReplayMemory(shape, np.zeros(shape.nbytes, np.uint8)), np.random.default_rng(0)
    for episode in range(rows // EPISODE):
        seen = stacks(pictures(rng, EPISODE + 1))
        for first in range(0, EPISODE, block):
            made = {c.name: np.zeros((block, *c.shape), c.dtype) for c in columns.columns}
            here = slice(first, first + block)
            made |= {"obs": seen[here], "next_obs": seen[first + 1 : first + block + 1]}
            made |= {"step": np.arange(first, first + block), "episode": np.full(block, episode)}
            made["terminated"][-1] = first + block == EPISODE
            memory.ingest(0, memory.position(0), 1, made, lambda _: {}, drop_open=False)
    if len(memory) != rows:
        raise RuntimeError(f"filling the memory: expected {rows} rows that can be drawn, got {len(memory)}")
    state = {"plan": memory.draw(0, updates, batch), "next": 0}

    def once(_: np.ndarray) -> None:
        if state["next"] == updates:
            state["plan"], state["next"] = memory.draw(0, updates, batch), 0
        memory.gather(state["plan"], state["next"], reuse=True)
        state["next"] += 1

    return once


def tianshou_memory(rows: int, batch: int) -> Callable[[np.ndarray], None]:
    """One sample of tianshou's buffer, which keeps the newest frame of each stack."""
    from tianshou.data import Batch, ReplayBuffer

    memory, rng = ReplayBuffer(rows, stack_num=STACK, ignore_obs_next=True, save_only_last_obs=True), None
    rng = np.random.default_rng(0)
    for _ in range(rows // EPISODE):
        seen = stacks(pictures(rng, EPISODE + 1))
        for k in range(EPISODE):
            row = {"obs": seen[k], "act": 0, "rew": 1.0, "obs_next": seen[k + 1], "info": {}}
            memory.add(Batch(terminated=k == EPISODE - 1, truncated=False, **row))

    def once(_: np.ndarray) -> None:
        memory.sample(batch)

    return once


def cpprb_memory(rows: int, batch: int) -> Callable[[np.ndarray], None]:
    """One sample of cpprb's buffer, with compressed stacks; its stacks come last."""
    from cpprb import ReplayBuffer

    shape = {
        "obs": {"shape": (SIDE, SIDE, STACK), "dtype": np.uint8},
        "act": {"dtype": np.int64},
        "rew": {},
        "done": {},
    }
    memory = ReplayBuffer(rows, shape, next_of="obs", stack_compress="obs")
    rng = np.random.default_rng(0)
    for _ in range(rows // EPISODE):
        seen = np.moveaxis(stacks(pictures(rng, EPISODE + 1)), 1, -1)
        for k in range(EPISODE):
            memory.add(obs=seen[k], act=0, rew=1.0, next_obs=seen[k + 1], done=k == EPISODE - 1)
        memory.on_episode_end()

    def once(_: np.ndarray) -> None:
        memory.sample(batch)

    return once


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=["mlxe_async", "tianshou", "cpprb"], required=True)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 256])
    given = parser.parse_args()
    make = {"mlxe_async": own_memory, "tianshou": tianshou_memory, "cpprb": cpprb_memory}[given.peer]
    for batch in given.batches:
        said = f"{given.rows:,} frames of 84 x 84, stacks of 4 before and after the step, batch {batch}"
        line = {
            "peer": given.peer,
            "version": version(given.peer),
            "configuration": said,
            "row": f"frames, batch {batch}",
        }
        print(json.dumps({**line, **rate(make(given.rows, batch), given.seconds, batch)}), flush=True)


if __name__ == "__main__":
    main()
