"""sample-factory: APPO on CartPole, each sample learned from once, workers and learner side by side.

The steps learned from are the learner's own count, told after each training batch.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tempfile
from typing import Any

import measuring
from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

BATCHED = {"batched_sampling": True, "worker_num_splits": 1}
# name -> what differs from SHARED
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "async-2x128-batched": {"num_workers": 2, "num_envs_per_worker": 128, **BATCHED},
    "async-2x64-batched": {"num_workers": 2, "num_envs_per_worker": 64, **BATCHED},
    "async-2x64": {"num_workers": 2, "num_envs_per_worker": 64},
    "async-1x128-batched": {"num_workers": 1, "num_envs_per_worker": 128, **BATCHED},
    "serial-1x128-batched": {
        "num_workers": 1,
        "num_envs_per_worker": 128,
        **BATCHED,
        "serial_mode": True,
        "async_rl": False,
    },
}
SHARED = {
    "algo": "APPO", "env": measuring.ENV, "device": "cpu", "use_rnn": False, "recurrence": 1, "rollout": 32,
    "batch_size": 4096, "num_batches_per_epoch": 1, "num_epochs": 1,
    "encoder_mlp_layers": [64, 64], "nonlinearity": "tanh",
    "normalize_input": False, "reward_scale": 0.1, "normalize_returns": False,
    "learning_rate": 1e-3, "with_vtrace": False,
    "save_every_sec": 100_000, "save_best_every_sec": 100_000, "experiment_summaries_interval": 1000,
    "log_to_file": False, "decorrelate_envs_on_one_worker": False,
}  # fmt: skip


def make(full_env_name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """An ordinary environment; module-level, because the workers import it."""
    return measuring.ordinary_environment()


def command_line(chosen: dict[str, Any], folder: str) -> list[str]:
    """The settings as sample-factory's own command line wants them."""
    words = [f"--train_dir={folder}", "--experiment=rate"]
    for key, value in {**SHARED, **chosen}.items():
        if isinstance(value, list):
            words += [f"--{key}", *map(str, value)]
        else:
            words.append(f"--{key}={value}")
    return words


def main() -> None:
    given, name = measuring.asked(CONFIGURATIONS)
    register_env(measuring.ENV, make)
    stopwatch = measuring.Stopwatch(given.seconds, given.warm_up)
    with tempfile.TemporaryDirectory() as folder:
        words = [*command_line(CONFIGURATIONS[name], folder), f"--seed={given.seed}"]
        parser, _ = parse_sf_args(words)
        _, runner = make_runner(parse_full_cfg(parser, words))

        def count(runner: Any, message: dict[str, Any], policy: int) -> None:
            if stopwatch.learned(message[LEARNER_ENV_STEPS]):
                runner.cfg.train_for_seconds = -1  # ends training at its next look: its clock stays at 0

        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(count)
        runner.init()
        runner.run()
    chosen = ", ".join(f"{key} {value}" for key, value in CONFIGURATIONS[name].items())
    said = f"APPO, 1 pass, {chosen}, rollout 32, MLP 64,64 shared"
    measuring.tell("sample-factory", "sample-factory", said, stopwatch.result(), row=given.row, config=name)


if __name__ == "__main__":
    main()
