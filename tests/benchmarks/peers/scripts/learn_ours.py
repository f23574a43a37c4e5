"""This package's SAC, TD3 or PPO, once, as `tasks_to_learn.py` says: seconds of learning and the return reached."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import tasks_to_learn

from mlxe_async import Supervisor, load_policy, load_settings

SETTINGS = Path(__file__).parents[4] / "settings"
COMMON = ("stop.solved=false", "evaluation.enabled=false", "checkpoint.interval_s=0")


def overrides(row: tasks_to_learn.Row, seed: int, threads: int) -> list[str]:
    """What the settings file says otherwise: the same network, rows, updates and steps as the others have."""
    limit = {"Pendulum-v1": 200, "HalfCheetah-v5": 1000, "LunarLander-v3": 1000}[row.env]
    same = [*COMMON, f"run.seed={seed}", f"stop.env_steps={row.steps}", f'task.env="{row.env}"']
    same += [f"learner.threads={threads}"]
    same += [f"task.max_episode_steps={limit}", f"evaluation.max_episode_steps={limit}"]
    if row.algorithm == "ppo":
        executors = 2
        same += [f"schedule.envs_per_executor={row.envs // executors}", f"schedule.rollout_steps={row.rollout_steps}"]
        same += [f"algorithm.{name}={list(row.layers)}" for name in ("policy", "value")]
        same += [f"algorithm.minibatch={row.batch}", f"algorithm.epochs={row.epochs}", "algorithm.normalise=false"]
        same += [f"algorithm.gae_lambda={row.gae_lambda}", f"algorithm.entropy={row.entropy}"]
        same += [f"algorithm.learning_rate_last={row.rate}"]
    else:
        executors = 1
        same += [f"algorithm.layers={list(row.layers)}", f"algorithm.batch={row.batch}"]
        same += [f"algorithm.start_rows={row.start}", f"algorithm.critic_learning_rate={row.rate}"]
        same += ["schedule.envs_per_executor=1", f"memory.capacity_rows={row.steps}", "schedule.kind=oa"]
        same += ["schedule.rollout_steps=8", "schedule.updates_per_publish=8", "schedule.max_owed_updates=16"]
    if row.algorithm == "sac":
        same += [f"algorithm.temperature_learning_rate={row.rate}"]
    if row.algorithm == "td3":
        same += ["algorithm.noise_first=0.1", "algorithm.noise_last=0.1"]
    same += [f"algorithm.learning_rate={row.rate}", f"algorithm.discount={row.discount}"]
    return [*same, f"schedule.executors={executors}"]


class Clock:
    """From the first step of an environment to the end of the last update, by the run's log."""

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.updates = 0

    def __call__(self, line: dict[str, object]) -> None:
        began = float(str(line["start_ns"])) / 1e9
        if line["phase"] == "generate" and not self.first:
            self.first = began
        if line["phase"] == "learn" and line["updates"]:
            self.last = began + float(str(line["seconds"]))
            self.updates += int(str(line["updates"]))


def main() -> None:
    name, row, seed, threads = tasks_to_learn.asked()
    file = {"sac": "sac-pendulum", "td3": "td3-pendulum", "ppo": "ppo-lunarlander"}[row.algorithm]
    settings = load_settings(SETTINGS / f"{file}.toml", overrides(row, seed, threads))
    clock, began = Clock(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(settings, run_dir=folder)
        supervisor.subscribe(clock, ["phase"])
        result = supervisor.run_sync()
        whole = time.perf_counter() - began
        policy = load_policy(result.run_dir, "last")
    reached = tasks_to_learn.mean_return(row, lambda obs: policy.act(np.asarray(obs, np.float32)[None])[0])
    found = {"seconds": round(clock.last - clock.first, 2), "reached": round(reached, 2)}
    found |= {"whole_seconds": round(whole, 2), "updates": clock.updates}
    tasks_to_learn.tell("mlxe_async", "mlxe_async", row=name, seed=seed, **found)


if __name__ == "__main__":
    main()
