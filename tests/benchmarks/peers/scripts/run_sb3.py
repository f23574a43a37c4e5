"""stable-baselines3: PPO on CartPole. Rows: each sample once, natively vectorised, PPO's own passes, time to solve.

The steps learned from are counted where a rollout begins: all that were collected before were learned from by then.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import measuring
import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

ENDLESS = 10**12
# Hyper-parameters of rl-baselines3-zoo for PPO on CartPole-v1; rate and clip fall to 0 within its 100,000 steps.
ZOO_STEPS = 100_000
ZOO = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98, "ent_coef": 0.0}
# name -> (algorithm, environments, steps of each in a rollout, torch threads)
ONE_PASS = {
    "a2c-256x32-t1": (A2C, 256, 32, 1),
    "ppo-256x32-t1": (PPO, 256, 32, 1),
    "ppo-256x32-t2": (PPO, 256, 32, 2),
    "ppo-128x32-t1": (PPO, 128, 32, 1),
    "ppo-64x128-t1": (PPO, 64, 128, 1),
    "ppo-512x64-t1": (PPO, 512, 64, 1),
    "ppo-1024x32-t1": (PPO, 1024, 32, 1),
    "a2c-1024x16-t1-dummy": (A2C, 1024, 16, 1),
    "a2c-512x16-t2": (A2C, 512, 16, 2),
}
NATIVE = {
    "ppo-1024x32-t1": (PPO, 1024, 32, 1),
    "ppo-1024x32-t2": (PPO, 1024, 32, 2),
    "ppo-256x64-t1": (PPO, 256, 64, 1),
    "a2c-1024x16-t1": (A2C, 1024, 16, 1),
    "a2c-2048x16-t2": (A2C, 2048, 16, 2),
}
OWN_PASSES = {"t1": 1, "t2": 2}


class NativeVecEnv(VecEnv):
    """gymnasium's natively vectorised CartPole as stable-baselines3 wants it: reset in the step that ended an episode.

    The environment resets in the step after; so its state is set here before that, with its own start distribution,
    and no step is a mere reset. `infos` are shared empty ones but for the episodes that ended.
    """

    def __init__(self, count: int, seed: int) -> None:
        vector = gymnasium.make_vec(measuring.ENV, count, vectorization_mode="vector_entry_point")
        self.vector: Any = vector.unwrapped
        super().__init__(count, self.vector.single_observation_space, self.vector.single_action_space)
        self._seed0, self._nothing = seed, [{} for _ in range(count)]

    def reset(self) -> np.ndarray:
        return self.vector.reset(seed=self._seed0)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        vector = self.vector
        observation, reward, terminated, truncated, _ = vector.step(self._actions)
        done = terminated | truncated
        infos = self._nothing
        if done.any():
            infos = infos.copy()
            for env in np.flatnonzero(done):
                infos[env] = {
                    "terminal_observation": observation[env].copy(),
                    "TimeLimit.truncated": bool(truncated[env] and not terminated[env]),
                }
            fresh = vector.np_random.uniform(vector.low, vector.high, size=(4, int(done.sum())))
            vector.state[:, done] = fresh
            vector.steps[done] = 0
            vector.prev_done[:] = False
            observation[done] = fresh.T
        return observation, reward, done, infos

    def close(self) -> None:
        self.vector.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.vector, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Clock(BaseCallback):
    """Stops learning when the stopwatch has seen enough."""

    def __init__(self, stopwatch: measuring.Stopwatch) -> None:
        super().__init__()
        self.stopwatch, self.over = stopwatch, False

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.over = self.stopwatch.learned(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.over


class Solved(BaseCallback):
    """Tests the policy every so many steps and stops when it passes; the time of the tests is taken off."""

    def __init__(self, every: int, threshold: float = 475.0, episodes: int = 20) -> None:
        super().__init__()
        self.every, self.threshold, self.episodes = every, threshold, episodes
        self.tested_at, self.off, self.passed, self.mean = 0, 0.0, False, 0.0
        self.learning_seconds = self.learning_cpu = self.began = self.cpu_began = self.cpu_off = 0.0

    def _on_training_start(self) -> None:
        self.began, self.cpu_began = time.perf_counter(), time.process_time()

    def _on_rollout_start(self) -> None:
        if self.num_timesteps - self.tested_at < self.every:
            return
        self.tested_at = self.num_timesteps
        before, cpu = time.perf_counter(), time.process_time()
        self.mean = mean_return(self.model, self.episodes)
        self.learning_seconds = before - self.began - self.off
        self.learning_cpu = cpu - self.cpu_began - self.cpu_off
        self.off += time.perf_counter() - before
        self.cpu_off += time.process_time() - cpu
        self.passed = self.mean >= self.threshold

    def _on_step(self) -> bool:
        return not self.passed


def mean_return(model: BaseAlgorithm, episodes: int) -> float:
    """Mean return of greedy episodes, played side by side; a finished one counts no further."""
    vector = gymnasium.make_vec(measuring.ENV, episodes, vectorization_mode="vector_entry_point")
    observation, _ = vector.reset(seed=20_000)
    alive, returns = np.ones(episodes, bool), np.zeros(episodes)
    while alive.any():
        actions, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = vector.step(actions)
        returns += reward * alive
        alive &= ~(terminated | truncated)
    return float(returns.mean())


def ordinary(count: int) -> VecEnv:
    """So many environments of `gymnasium.make`, one after the other in this process: SB3's own fastest for CartPole."""
    return DummyVecEnv([measuring.ordinary_environment] * count)


def one_pass(name: str, native: bool, seed: int) -> tuple[BaseAlgorithm, str]:
    """Each sample learned from once, the whole rollout as one batch."""
    kind, count, steps, threads = (NATIVE if native else ONE_PASS)[name]
    torch.set_num_threads(threads)
    env = NativeVecEnv(count, seed) if native else ordinary(count)
    more: dict[str, Any] = {"batch_size": count * steps, "n_epochs": 1} if kind is PPO else {}
    model = kind("MlpPolicy", env, n_steps=steps, learning_rate=1e-3, seed=seed, device="cpu", **more)
    where = "native vector environment through an adapter" if native else "DummyVecEnv of gymnasium.make"
    return model, (
        f"{kind.__name__}, 1 pass, {count} envs x {steps} steps in one batch, {where}, MLP 64,64 twice, "
        f"{threads} torch thread{'s' * (threads > 1)}"
    )


def own_passes(zoo: bool, name: str, seed: int, falls: bool) -> tuple[BaseAlgorithm, str]:
    """PPO as its makers set it: at the package's defaults, or at the zoo's for CartPole."""
    torch.set_num_threads(OWN_PASSES[name])
    if not zoo:
        model = PPO("MlpPolicy", ordinary(1), seed=seed, device="cpu")
        return model, f"PPO at its defaults: 1 env x 2048 steps, minibatches of 64, 10 epochs, threads {name}"
    rate: Any = (lambda left: 1e-3 * left) if falls else 1e-3
    clip: Any = (lambda left: 0.2 * left) if falls else 0.2
    model = PPO("MlpPolicy", ordinary(8), learning_rate=rate, clip_range=clip, seed=seed, device="cpu", **ZOO)
    return model, f"PPO at rl-baselines3-zoo's: 8 envs x 32 steps, minibatches of 256, 20 epochs, threads {name}"


def main() -> None:
    given = measuring.arguments(
        ["one-pass", "native", "ppo-defaults", "ppo-zoo", "solve"], ["", *ONE_PASS, *NATIVE, *OWN_PASSES]
    )
    names = {"one-pass": ONE_PASS, "native": NATIVE}.get(given.row, OWN_PASSES)
    if given.list:
        print("\n".join(names))
        return
    name = given.config or next(iter(names))
    if given.row == "solve":
        model, said = own_passes(True, name, given.seed, falls=True)
        solved = Solved(every=2048)
        model.learn(ZOO_STEPS, callback=solved)
        found = {
            "solved": solved.passed,
            "learning_seconds": solved.learning_seconds,
            "learning_steps": solved.tested_at,
            "cpu_seconds": solved.learning_cpu,
            "mean_return": solved.mean,
        }
        measuring.tell(
            "stable-baselines3", "stable-baselines3", said, found, row=given.row, config=name, seed=given.seed
        )
        return
    if given.row in ("one-pass", "native"):
        model, said = one_pass(name, given.row == "native", given.seed)
    else:
        model, said = own_passes(given.row == "ppo-zoo", name, given.seed, falls=False)
    stopwatch = measuring.Stopwatch(given.seconds, given.warm_up)
    model.learn(ENDLESS, callback=Clock(stopwatch))
    measuring.tell("stable-baselines3", "stable-baselines3", said, stopwatch.result(), row=given.row, config=name)


if __name__ == "__main__":
    main()
