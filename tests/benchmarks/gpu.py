"""Milliseconds of an update on the CPU and on a GPU: `python tests/benchmarks/gpu.py [--updates N] [--only NAME]`.

Each algorithm with the settings of its file in `settings/`, made as the learner makes it, is given the same made-up
batch again and again; medians are told: on one thread of the CPU, and on the GPU with each operation launched by itself
and by recorded steps, both out of page-locked memory where learners do so. The device is waited for each time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy starts its pools

import argparse
import contextlib
import mmap
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlxe_async.algorithms import Clock, load_algorithm
from mlxe_async.gpu import PinnedMemory, use_graphs
from mlxe_async.rows import Spaces
from mlxe_async.settings import load_settings

ROOT = Path(__file__).parents[2]
CARTPOLE, PONG = Spaces((4,), actions=2), Spaces((4, 84, 84), "|u1", actions=6)
CASES = {
    "mlxe": ("oa.toml", CARTPOLE, {}),
    "dqn": ("dqn-cartpole.toml", CARTPOLE, {}),
    "ppo": ("ppo-cartpole.toml", CARTPOLE, {}),
    "ppo, fast.toml": ("fast.toml", CARTPOLE, {}),
    "ppo, pong.toml, 1 epoch": ("pong.toml", PONG, {"epochs": 1}),
    "ppo, pong.toml": ("pong.toml", PONG, {}),
    "ppo, pong.toml, bfloat16": ("pong.toml", PONG, {"precision": "bfloat16"}),
}


def segment(spaces: Spaces, shape: tuple[int, ...]) -> dict[str, Any]:
    """Made-up rows (T, ...) of episodes that begin with the first and end with the last one."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(shape[0] + 1, *shape[1:], *spaces.observation_shape)).astype(np.float32)
    if spaces.observation_dtype == "|u1":
        seen = rng.integers(0, 256, seen.shape, dtype=np.uint8)
    rows = {name: np.zeros(shape, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows["terminated"][-1] = 1
    rows |= {"obs": seen[:-1], "next_obs": seen[1:].copy(), "reward": rng.normal(size=shape).astype(np.float32)}
    rows |= {"action": rng.integers(0, spaces.actions or 1, shape), "valid": np.ones(shape, bool)}
    rows |= {"log_prob": np.full(shape, -np.log(spaces.actions or 1), np.float32), "episode": np.zeros(shape, np.int64)}
    return rows | {"step": np.broadcast_to(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)), shape).copy()}


def made(case: str, device: str, extra: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """The algorithm of a case on a device, and a batch of the size that its settings say."""
    file, spaces, changed = CASES[case]
    settings = load_settings(ROOT / "settings" / file, {})
    kind = load_algorithm(settings.algorithm.name)
    table = {key: value for key, value in settings.algorithm.table.items() if key != "name"} | changed | (extra or {})
    algorithm = kind(kind.Settings.model_validate(table), spaces, seed=1, learns=True, device=device)
    schedule = settings.schedule
    if algorithm.memory == "rollouts":
        return algorithm, segment(spaces, (schedule.rollout_steps, schedule.envs_per_executor))
    rows = segment(spaces, (algorithm.batch_rows,))
    return algorithm, rows | algorithm.derive(rows) | {"weight": np.ones(algorithm.batch_rows, np.float32)}


def seconds(work: Callable[[], Any], device: str, repeats: int, *, first: int = 10) -> list[float]:
    """Wall seconds of each of so many calls, after the `first` ones, which are not counted."""
    found = []
    for number in range(-first, repeats):
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        if number >= 0:
            found.append(time.perf_counter() - began)
    return found


@contextlib.contextmanager
def registered(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same batch in page-locked memory, as that of a learner's rollouts is, for as long as the block lasts.

    Each column has pages of its own: the driver locks whole ones, and those of a heap are somebody else's, too.
    """
    locked, batch = [], dict(batch)
    for name in ("obs", "next_obs"):
        column = np.ascontiguousarray(batch[name])
        pages = mmap.mmap(-1, max(1, column.nbytes))
        batch[name] = np.frombuffer(pages, column.dtype, column.size).reshape(column.shape)
        batch[name][...] = column
        locked.append(PinnedMemory(pages))
    try:
        yield batch
    finally:
        for memory in locked:
            memory.close()


def tell(case: str, way: str, algorithm: Any, batch: dict[str, Any], given: argparse.Namespace) -> None:
    """Measure one case in one way, and print its line."""
    device, pictures, repeats, first = way.partition(",")[0], "pong" in case, given.updates, 10
    if pictures:
        repeats, first = (3, 1) if device == "cpu" else (max(5, given.updates // 10), 5)
    clock = iter(range(10**9))

    def update() -> None:
        algorithm.update(batch, Clock(updates=next(clock), episodes=1, env_steps=1000, version=1))

    found = seconds(update, device, repeats, first=first)
    fetched = statistics.median(seconds(algorithm.weights, device, 20))
    print(
        f"{case:28} {batch['action'].size:6} {way:>12} {1e3 * statistics.median(found):8.2f}"
        f" {1e3 * sorted(found)[int(0.9 * len(found))]:9.2f} {1e3 * fetched:11.3f}",
        flush=True,
    )
    if given.profile and device != "cpu":
        with torch.profiler.profile() as profile:
            update()
        averages = profile.key_averages()
        print(averages.table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=50))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=200, help="of each algorithm, fewer of pictures")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--profile", action="store_true", help="torch's table of what the GPU was asked to do")
    given = parser.parse_args()
    ways = ["cpu", *(["cuda", "cuda, graphs"] if torch.cuda.is_available() else [])]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if len(ways) > 1 else 'no GPU'}")
    print(f"{'':28} {'rows':>6} {'way':>12} {'ms':>8} {'ms, 90 %':>9} {'weights ms':>11}")
    for case in CASES:
        if given.only not in case:
            continue
        for way in ways:
            device = way.partition(",")[0]
            use_graphs(way == "cuda, graphs")
            algorithm, batch = made(case, device)
            locks = device != "cpu" and algorithm.memory == "rollouts"
            with registered(batch) if locks else contextlib.nullcontext(batch) as rows:
                tell(case, way, algorithm, rows, given)


if __name__ == "__main__":
    main()
