"""This package's PPO with an LSTM on CartPole without velocities, as `hidden_cartpole.py` says, two executors."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import hidden_cartpole as task
import measuring

from mlxe_async import Supervisor, load_settings

EXECUTORS = 2


def settings(given: task.Asked) -> dict[str, dict[str, object]]:
    """The same network, rows, updates and steps as the others have."""
    algorithm = {
        "name": "ppo",
        "common": [task.SIZE],
        "cell": "lstm",
        "cell_size": task.SIZE,
        "policy": [],
        "value": [],
    }
    algorithm |= {"cells": "apart"}
    algorithm |= {"activation": "tanh", "normalise": False, "discount": task.DISCOUNT, "gae_lambda": task.LAMBDA}
    algorithm |= {"clip": task.CLIP, "epochs": task.EPOCHS, "entropy": task.ENTROPY, "max_gradient_norm": task.NORM}
    algorithm |= {"minibatch": task.ENVS * task.ROLLOUT // task.MINIBATCHES, "sequence_steps": task.ROLLOUT}
    # Its loss of the critic is half the mean squared error.
    algorithm |= {"value_coefficient": 2 * task.VALUE, "learning_rate": task.RATE, "learning_rate_last": task.RATE}
    schedule = {"kind": "is", "executors": EXECUTORS, "envs_per_executor": task.ENVS // EXECUTORS, "sync": "rollout"}
    return {
        "run": {"seed": given.seed},
        "stop": {"solved": False, "env_steps": given.steps},
        "task": {"env": measuring.ENV, "hide": list(task.HIDDEN), "max_episode_steps": 500},
        "schedule": {**schedule, "rollout_steps": task.ROLLOUT},
        "algorithm": algorithm,
        "learner": {"device": "cpu", "threads": 1},
        "evaluation": {"enabled": False},
        "checkpoint": {"interval_s": 0},
    }


def main() -> None:
    given, ends, returns = task.asked(), list[tuple[float, int]](), list[float]()

    def seen(line: dict[str, object]) -> None:
        if line["event"] == "episode_end":
            returns.append(float(str(line["episode_return"])))
        elif line["phase"] == "learn" and line["updates"]:
            ends.append((int(str(line["start_ns"])) / 1e9 + float(str(line["seconds"])), int(str(line["env_steps"]))))

    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(load_settings(settings(given)), run_dir=folder)
        supervisor.subscribe(seen, ["phase", "episode_end"])
        result = supervisor.run_sync()
        status = json.loads((Path(result.run_dir) / "status.json").read_text())
    cpu = sum(used for name, used in status["cpu_seconds"].items() if name != "mlxe-nursery")
    found = task.rate(ends, given.warm_up) | task.last(returns) | {"cpu_us_per_step": 1e6 * cpu / ends[-1][1]}
    said = f"is, {EXECUTORS} executors of {task.ENVS // EXECUTORS} environments"
    measuring.tell("mlxe_async", "mlxe_async", said, found, row="ppo-lstm", seed=given.seed)


if __name__ == "__main__":
    main()
