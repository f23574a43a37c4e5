"""What stepping and testing cost: `python tests/benchmarks/tasks.py`. One core; counts environment steps."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy starts its pools

import time
from collections.abc import Callable

import gymnasium
import numpy as np

from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.roles.evaluator import Evaluator
from mlxe_async.rows import Spaces
from mlxe_async.tasks.physics import BLOCK, CartPolePhysics, start_state
from mlxe_async.tasks.vector import VectorTask

LINEAR = np.array([0.1, 0.3, 1.0, 0.4], np.float32)
HELPS = {"adverse_starts": True, "shaped_reward": True, "squared_position": True, "mirror": True}
REPEATS = 5


def best(measure: Callable[[], float]) -> float:
    """The smallest of a few measurements: what the code needs when no other process disturbs it."""
    return min(measure() for _ in range(REPEATS))


def bare_gymnasium(steps: int = 40_000, *, wrapped: bool = False) -> float:
    """Seconds per step of one environment under random pushes, resets included."""
    env = gymnasium.make("CartPole-v1")
    env = env if wrapped else env.unwrapped
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, steps).tolist()
    began = time.perf_counter()
    for number, action in enumerate(actions):
        if env.step(action)[2]:
            env.reset(seed=number)
    return (time.perf_counter() - began) / steps


def vector_task(count: int, steps: int = 40_000, **switches: bool) -> float:
    """Seconds per step of each environment, resets included."""
    task = VectorTask({"env": "CartPole-v1", **switches}, count)
    for index in range(count):
        task.reset(index, seed=index)
    actions = np.random.default_rng(0).integers(0, 2, (steps // count, count))
    began = time.perf_counter()
    for number, action in enumerate(actions):
        for index in task.step(action).ended:
            task.reset(index, number, 10)
    return (time.perf_counter() - began) / (steps // count * count)


def physics(rows: int, blocks: int = 60) -> float:
    """Seconds per tick of all rows, observations and the look at who fell included, the policy not."""
    carts = CartPolePhysics(np.stack([start_state(seed) for seed in range(rows)]))
    spent = 0.0
    for _ in range(blocks):
        for _ in range(BLOCK):
            actions = (carts.obs @ LINEAR > 0).astype(np.int64)
            began = time.perf_counter()
            carts.tick(actions)
            carts.observe()
            spent += time.perf_counter() - began
        began = time.perf_counter()
        carts.fallen()
        spent += time.perf_counter() - began
    return spent / (blocks * BLOCK)


class Charged:
    """Evaluates a network for what it costs and plays the linear policy, so that every test passes."""

    def __init__(self, policy: MLxE) -> None:
        self.policy = policy

    def greedy_many(self, flats, obs):
        self.policy.greedy_many(flats, obs)
        return (obs @ LINEAR > 0).astype(np.int64)


def passing_test(policy: MLxE, versions: int) -> float:
    """Seconds until `versions` versions, added at once, have passed: 50,000 steps from 20 restarts each."""
    evaluator = Evaluator(Charged(policy), {"env": "CartPole-v1"}, {"rule": "cap"})
    for version in range(versions):
        evaluator.add(version, policy.weights())
    began = time.perf_counter()
    verdicts = evaluator.advance(None)
    assert all(verdict.passed for verdict in verdicts)
    return time.perf_counter() - began


def main() -> None:
    print(f"one core of {os.cpu_count()}, numpy {np.__version__}, gymnasium {gymnasium.__version__}\n")
    rows = [
        ("gymnasium's CartPoleEnv alone", 1, best(bare_gymnasium)),
        ("gymnasium.make, its wrappers", 1, best(lambda: bare_gymnasium(wrapped=True))),
        ("VectorTask", 1, best(lambda: vector_task(1))),
        ("VectorTask", 8, best(lambda: vector_task(8))),
        ("VectorTask, all four changes", 1, best(lambda: vector_task(1, **HELPS))),
        ("VectorTask, all four changes", 8, best(lambda: vector_task(8, **HELPS))),
    ]
    print(f"{'CartPole-v1, random pushes':32}{'B':>3}{'us/step':>10}{'steps/s':>12}{'beyond gymnasium alone':>26}")
    for name, count, seconds in rows:
        beyond = f"{(seconds - rows[0][2]) * 1e6:.1f} us/step"
        print(f"{name:32}{count:3}{seconds * 1e6:10.1f}{1 / seconds:12,.0f}{beyond:>26}")
    print(f"\n{'vectorised physics':32}{'N':>3}{'us/tick':>10}{'ticks/s':>12}{'steps/s':>26}")
    for count in (1, 20, 60, 80, 160):
        seconds = best(lambda count=count: physics(count))
        print(f"{'':31}{count:4}{seconds * 1e6:10.1f}{1 / seconds:12,.0f}{count / seconds:26,.0f}")
    shapes = {
        "tanh 64x64": MLxESettings(policy=(64, 64)),
        "relu 128-256-128, 64-128-64": MLxESettings(
            common=(128, 256, 128), policy=(64, 128, 64), value=(64, 128, 64), activation="relu"
        ),
    }
    spaces = Spaces((4,), actions=2)
    shapes = {name: MLxE(one, spaces, seed=0, learns=False) for name, one in shapes.items()}
    print(f"\n{'a passing test, 1 million steps':32}{'V':>3}{'seconds':>10}{'a version':>12}")
    for name, policy in shapes.items():
        for versions in (1, 3):
            seconds = best(lambda policy=policy, versions=versions: passing_test(policy, versions))
            print(f"{name:32}{versions:3}{seconds:10.2f}{seconds / versions:12.2f}")


if __name__ == "__main__":
    main()
