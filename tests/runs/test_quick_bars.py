"""Quick bars: few environment steps, a mean of test episodes, two seeds of three."""

import asyncio

import numpy as np
import pytest
from live_runs import HERE

from mlxe_async import Supervisor, load_policy, load_settings

SEEDS = (101, 102, 103)
EPISODES = 20
BARS = {
    "reinforce-cartpole": ({"stop.env_steps": 100_000}, 300),
    "a2c-cartpole": ({"stop.env_steps": 150_000}, 400),
    "impala-cartpole": ({}, 400),
    "apex-cartpole": ({}, 400),
    "ppo-cartpole": ({"stop.env_steps": 100_000}, 475),
    "dqn-cartpole": ({"stop.env_steps": 50_000}, 400),
    "dqn-per-cartpole": ({}, 400),
    "c51-cartpole": ({}, 400),
    "rainbow-cartpole": ({}, 400),
    "ppo-pendulum": ({}, -250),
    "sac-pendulum": ({"stop.env_steps": 10_000}, -200),
    "td3-pendulum": ({"stop.env_steps": 15_000}, -250),
    "ddpg-pendulum": ({"stop.env_steps": 15_000}, -250),
}
"""Settings file -> overrides, and the mean return that the last version is to reach."""


def mean_return(file, overrides, seed, folder):
    """What the last version of a run comes to in test episodes of its own."""
    always = {"run.seed": seed, "run.dir": str(folder), "stop.solved": False, "evaluation.enabled": False}
    chosen = load_settings(HERE.parents[1] / "settings" / f"{file}.toml", {**always, **overrides})
    result = asyncio.run(Supervisor(chosen).run())
    policy = load_policy(result.run_dir, checkpoint="last")
    return float(np.mean([episode.episode_return for episode in policy.play(EPISODES)]))


@pytest.mark.slow
@pytest.mark.parametrize("file", BARS)
def test_two_seeds_of_three_reach_the_bar(file, tmp_path):
    overrides, bar = BARS[file]
    found = [mean_return(file, overrides, seed, tmp_path) for seed in SEEDS]
    print(f"{file}: {', '.join(f'{one:.1f}' for one in found)}, expected 2 of 3 at {bar} or above")
    assert sum(one >= bar for one in found) >= 2, found
