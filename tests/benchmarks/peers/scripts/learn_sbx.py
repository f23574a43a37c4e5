"""SBX's SAC or TD3, stable-baselines3's sibling in JAX, once, as `tasks_to_learn.py` says.

Told are the seconds of learning and the return reached; and of the seconds those that compiling took: what single
steps took beyond twenty times the median one, which are the first updates.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import tasks_to_learn
from sbx import SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv


class Steps(BaseCallback):
    """Notes when each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def _on_step(self) -> bool:
        self.ends.append(time.perf_counter())
        return True


def model(row: tasks_to_learn.Row, seed: int) -> Any:
    """The learner; what is not told is the package's default."""
    env = DummyVecEnv([lambda: gymnasium.make(row.env)])
    same: dict[str, Any] = {"learning_rate": row.rate, "buffer_size": row.steps, "learning_starts": row.start}
    same |= {"batch_size": row.batch, "gamma": row.discount, "train_freq": 1, "gradient_steps": 1}
    same |= {"policy_kwargs": {"net_arch": list(row.layers)}, "seed": seed}
    if row.algorithm == "sac":
        return SAC("MlpPolicy", env, qf_learning_rate=row.rate, **same)
    numbers = env.action_space.shape[0]
    return TD3("MlpPolicy", env, action_noise=NormalActionNoise(np.zeros(numbers), np.full(numbers, 0.1)), **same)


def main() -> None:
    name, row, seed, _ = tasks_to_learn.asked()  # XLA takes as many threads as there are cores
    learner, steps = model(row, seed), Steps()
    began = time.perf_counter()
    learner.learn(row.steps, callback=steps)
    seconds = time.perf_counter() - began
    compiling = tasks_to_learn.beyond_usual(steps.ends)
    reached = tasks_to_learn.mean_return(row, lambda obs: learner.predict(obs, deterministic=True)[0])
    found = {"seconds": round(seconds, 2), "compiling_seconds": round(compiling, 2), "reached": round(reached, 2)}
    tasks_to_learn.tell("sbx", "sbx-rl", row=name, seed=seed, **found)


if __name__ == "__main__":
    main()
