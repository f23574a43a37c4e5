"""stable-baselines3's SAC, TD3 or PPO, once, as `tasks_to_learn.py` says: seconds of learning, and return reached."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import tasks_to_learn
import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv


def model(row: tasks_to_learn.Row, seed: int) -> BaseAlgorithm:
    """The learner; what is not told is the package's default."""
    env = DummyVecEnv([lambda: gymnasium.make(row.env)] * row.envs)
    layers: dict[str, Any] = {"net_arch": list(row.layers)}
    if row.algorithm == "ppo":
        return PPO(
            "MlpPolicy", env, n_steps=row.rollout_steps, batch_size=row.batch, n_epochs=row.epochs,
            gamma=row.discount, gae_lambda=row.gae_lambda, ent_coef=row.entropy, learning_rate=row.rate,
            policy_kwargs=layers, seed=seed, device="cpu",
        )  # fmt: skip
    same: dict[str, Any] = {"learning_rate": row.rate, "buffer_size": row.steps, "learning_starts": row.start}
    same |= {"batch_size": row.batch, "gamma": row.discount, "train_freq": 1, "gradient_steps": 1}
    same |= {"policy_kwargs": layers, "seed": seed, "device": "cpu"}
    if row.algorithm == "sac":
        return SAC("MlpPolicy", env, **same)
    numbers = env.action_space.shape[0]
    return TD3("MlpPolicy", env, action_noise=NormalActionNoise(np.zeros(numbers), np.full(numbers, 0.1)), **same)


def main() -> None:
    name, row, seed, threads = tasks_to_learn.asked()
    torch.set_num_threads(threads)
    learner = model(row, seed)
    began = time.perf_counter()
    learner.learn(row.steps)
    seconds = time.perf_counter() - began
    reached = tasks_to_learn.mean_return(row, lambda obs: learner.predict(obs, deterministic=True)[0])
    package = "stable-baselines3"
    tasks_to_learn.tell(package, package, row=name, seed=seed, seconds=round(seconds, 2), reached=round(reached, 2))


if __name__ == "__main__":
    main()
