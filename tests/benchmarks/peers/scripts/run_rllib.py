"""rllib: PPO (one pass) and IMPALA on CartPole.

The steps learned from are rllib's own count of sampled ones, once they were trained on: its count of trained ones is
larger where a batch is learned from in two pieces.
"""

from __future__ import annotations

import os

os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from typing import Any

import measuring
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

# name -> (algorithm, runners beside the learner, environments of each, batch)
CONFIGURATIONS = {
    "ppo-0x64": (PPOConfig, 0, 64, 4096),
    "ppo-2x32": (PPOConfig, 2, 32, 4096),
    "impala-1x64": (IMPALAConfig, 1, 64, 2048),
    "impala-2x32": (IMPALAConfig, 2, 32, 2048),
}


def main() -> None:
    given, name = measuring.asked(CONFIGURATIONS, {"one-pass": "", "a3c": "impala"})
    kind, runners, count, batch = CONFIGURATIONS[name]
    training: dict[str, Any] = {"train_batch_size_per_learner": batch, "lr": 1e-3}
    if kind is PPOConfig:
        training |= {"num_epochs": 1, "minibatch_size": None}  # the whole batch at once
    ray.init(num_cpus=max(2, runners + 1), include_dashboard=False, log_to_driver=False, logging_level="error")
    algorithm = (
        kind()
        .environment(measuring.ENV)
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=count)
        .learners(num_learners=0)
        .training(**training)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .debugging(seed=given.seed, log_level="ERROR")
        .build_algo()
    )
    stopwatch = measuring.Stopwatch(given.seconds, given.warm_up)
    while True:
        told = algorithm.train()
        learners = told.get("learners", {}).get("__all_modules__", {})
        trained = int(learners.get("num_env_steps_trained_lifetime", 0))
        sampled = int(told["env_runners"]["num_env_steps_sampled_lifetime"])
        if trained and stopwatch.learned(min(sampled, trained)):
            break
    found = stopwatch.result()
    algo = kind.__name__.removesuffix("Config")
    said = f"{algo}, 1 pass, {runners} env runners x {count} envs, batch {batch}, MLP 64,64"
    measuring.tell("rllib", "ray", said, found, row=given.row, config=name)
    ray.shutdown()


if __name__ == "__main__":
    main()
