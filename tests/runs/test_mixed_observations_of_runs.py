"""Runs of tasks that show a picture beside numbers: learned from, saved, loaded, gone on with, and acted by."""

import numpy as np
import pytest
import torch
from parted_tasks import Sights
from resume_tools import SAVING, run_here, settings, whole_numbers

from mlxe_async import load_policy

KEYS = {"body": "nature", "common": [64], "policy": [], "value": [], "activation": "relu", "normalise": True}
PPO = {"name": "ppo", **KEYS, "learning_rate": 1e-3, "minibatch": 64, "epochs": 4}
DQN = {"name": "dqn", "body": "nature", "layers": [64], "layer_norm": False, "batch": 32, "start_rows": 200}
DQN |= {"epsilon_steps": 4000, "train_every": 4}
MLXE = {"name": "mlxe", **KEYS, "batch": 64, "train_every": 16, "min_updates": 0}
ROLLOUTS = {"kind": "is", "executors": 2, "sync": "rollout", "rollout_steps": 16, "envs_per_executor": 4}
TESTS = {"enabled": True, "rule": "mean_return", "threshold": 7.5, "episodes": 10, "max_episode_steps": 20, "passes": 1}


def sights(**kwargs):
    return {"env": "parted_tasks:Sights", "max_episode_steps": 20, "kwargs": kwargs}


def share_right(policy, env, steps=40):
    """Of actions for the environment's own observations."""
    right, (obs, _) = 0, env.reset(seed=7)
    for _ in range(steps):
        action = int(policy.act(obs))
        right += action == env.right(obs)
        obs, _, over, _, _ = env.step(action)
        obs = env.reset()[0] if over else obs
    return right / steps


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [PPO, pytest.param(MLXE, marks=pytest.mark.slow)])
def test_a_run_is_saved_loaded_gone_on_with_and_handed_out_as_a_module(tmp_path, algorithm):
    tables = {"task": sights(), "algorithm": algorithm, "schedule": ROLLOUTS}
    result, run = run_here(settings(stop={"env_steps": 128}, **SAVING, **tables), tmp_path)
    assert result.reason == "env_steps"
    assert not run.all("env_error")
    policy, env = load_policy(result.run_dir), Sights()
    (episode,) = policy.play(1, seed=0)
    assert episode.steps == 8
    obs, _ = env.reset(seed=5)
    stored = policy._packed(obs, None)
    assert stored.dtype == np.uint8
    assert stored.nbytes == 12 + 36 * 36
    action = policy.act(obs)
    assert policy.act(np.stack([stored, stored])).tolist() == [action, action]
    named = {"picture": obs["picture"], "numbers.one": obs["numbers"]["one"]}
    outputs = policy.module()({name: torch.from_numpy(part)[None] for name, part in named.items()})
    assert int(outputs["actor"].argmax()) == action
    policy.algorithm.load(policy.flat)
    see = getattr(policy.algorithm, "see", None) or policy.algorithm.network.see
    moments = see.normaliser.moments
    assert moments.mean.shape == (3,)
    assert moments.rows > 0
    np.testing.assert_allclose(moments.mean.sum(), 4, rtol=1e-3)  # one of the three is 4 in each observation
    again, rerun = run_here(settings(stop={"env_steps": 256}, **SAVING, **tables), resume=result.run_dir)
    assert rerun.all("run_resume")[0]["exact"]
    assert again.steps >= 256 > result.steps
    assert whole_numbers(rerun)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["picture", "numbers"])
@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_what_only_the_picture_or_only_the_numbers_say_is_learned(live, algorithm, answer):
    result, run = live(
        task=sights(answer=answer),
        algorithm=algorithm,
        schedule={**ROLLOUTS, "kind": "is"},
        evaluation=TESTS,
        stop={"solved": True, "env_steps": 60_000},
    )
    assert not run.all("env_error")
    assert result.solved
    policy = load_policy(result.run_dir)
    assert policy.test().passed
    assert share_right(policy, Sights(answer=answer)) > 0.8
