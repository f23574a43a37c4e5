"""This package's SAC, TD3 or PPO, once, as `tasks_to_learn.py` says: seconds of learning and the return reached."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import tasks_to_learn

from mlxe_async import Supervisor, load_policy, load_settings

SETTINGS = Path(__file__).parents[4] / "settings"
SCHEDULES = {
    "oa": ["schedule.rollout_steps=8", "schedule.updates_per_publish=8", "schedule.max_owed_updates=16"],
    "is": ["schedule.rollout_steps=32"],
}
"""Of SAC and TD3, whose one executor acts beside the learner, or by turns with it."""
COMMON = ("stop.solved=false", "evaluation.enabled=false", "checkpoint.interval_s=0")


def overrides(row: tasks_to_learn.Row, seed: int, threads: int, schedule: str) -> list[str]:
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
        same += ["schedule.envs_per_executor=1", f"memory.capacity_rows={row.steps}"]
        same += [f"schedule.kind={schedule}", *SCHEDULES[schedule]]
    if row.algorithm == "sac":
        same += [f"algorithm.temperature_learning_rate={row.rate}"]
    if row.algorithm == "td3":
        same += ["algorithm.noise_first=0.1", "algorithm.noise_last=0.1"]
    same += [f"algorithm.learning_rate={row.rate}", f"algorithm.discount={row.discount}"]
    return [*same, f"schedule.executors={executors}"]


def learning(log: Path) -> tuple[float, int]:
    """Seconds from the first step of an environment to the end of the last update, and the updates, by the run's log.

    There are no subscribers, for which lines would be written at once and not in idle moments.
    """
    lines = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "phase"]
    first = min(line["start_ns"] for line in lines if line["phase"] == "generate")
    done = [line for line in lines if line["phase"] == "learn" and line["updates"]]
    last = max(line["start_ns"] + round(1e9 * line["seconds"]) for line in done)
    return (last - first) / 1e9, sum(line["updates"] for line in done)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", choices=[*SCHEDULES], default="oa", help="of SAC and TD3")
    given, words = parser.parse_known_args()
    name, row, seed, threads = tasks_to_learn.asked(words)
    file = {"sac": "sac-pendulum", "td3": "td3-pendulum", "ppo": "ppo-lunarlander"}[row.algorithm]
    settings = load_settings(SETTINGS / f"{file}.toml", overrides(row, seed, threads, given.schedule))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = Supervisor(settings, run_dir=folder).run_sync()
        whole = time.perf_counter() - began
        seconds, updates = learning(Path(result.run_dir) / "log.jsonl")
        policy = load_policy(result.run_dir, "last")
    reached = tasks_to_learn.mean_return(row, lambda obs: policy.act(np.asarray(obs, np.float32)[None])[0])
    found = {"seconds": round(seconds, 2), "reached": round(reached, 2)}
    found |= {"whole_seconds": round(whole, 2), "updates": updates}
    peer = "mlxe_async" if given.schedule == "oa" else f"mlxe_async, {given.schedule}"
    tasks_to_learn.tell(peer, "mlxe_async", row=name, seed=seed, **found)


if __name__ == "__main__":
    main()
