"""Runs whose environments are EnvPool's: one seed tells one story, killed executors are replaced, a run is resumed."""

import importlib.util
import os
import signal

import pytest
from live_runs import settings
from resume_tools import SAVING, interrupted, run_here
from test_determinism import story

from mlxe_async.policy import load_policy

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="needs the extra envpool"),
    pytest.mark.long,
]
PPO = {"name": "ppo", "epochs": 1, "minibatch": 128}
POOLED = {"task": {"vectorize": "envpool", "max_episode_steps": 100}, "algorithm": PPO, "stop": {"env_steps": 3000}}
TESTED = {"enabled": True, "rule": "mean_return", "max_episode_steps": 30, "screen_steps": 30}
SCHEDULE = {"executors": 2, "envs_per_executor": 8, "rollout_steps": 32}


def pooled(live, body=None, kind="is", **tables):
    return live(body, **POOLED, schedule={"kind": kind, **SCHEDULE}, **tables)


def test_one_seed_tells_the_same_story_under_is_and_serial_and_no_reset_is_a_row(live):
    parallel, run = pooled(live)
    serial, serial_run = pooled(live, kind="serial")
    assert parallel.weights_hash == serial.weights_hash
    assert story(run) == story(serial_run)
    ends = run.all("episode_end")
    assert len(ends) > 50
    assert {line["episode_return"] - line["length"] for line in ends} == {0.0}
    rollouts = run.all("phase", phase="generate")
    steps, fallen = 32 * 8 * len(rollouts), sum(line["terminated"] for line in ends)
    # One step resets after each fall; at the very end, some may have fallen whose reset is still to come.
    assert steps - fallen <= sum(line["rows"] for line in rollouts) <= steps - fallen + 2 * 8


def test_a_killed_executor_is_replaced_and_the_run_ends_as_asked(live):
    async def kill(run):
        await run.saw("weights", times=3)
        os.kill(run.pid("mlxe-exe-1"), signal.SIGKILL)
        await run.saw("proc_start", times=2, process="mlxe-exe-1")

    result, run = pooled(live, kill, supervision={"backoff_s": 0.01})
    assert result.steps >= 3000
    assert [line["signal"] for line in run.all("proc_exit", expected=False)] == ["SIGKILL"]
    assert {line["episode_return"] - line["length"] for line in run.all("episode_end")} == {0.0}


def test_a_run_goes_on_from_its_checkpoint_with_episodes_begun_anew(tmp_path):
    chosen = settings(**POOLED, schedule={"kind": "is", **SCHEDULE}, **SAVING)
    folder = interrupted(tmp_path / "killed", chosen)
    result, run = run_here(chosen, resume=folder)
    assert result.steps >= 3000
    assert any("begun anew" in line["message"] for line in run.all("warning"))


def test_a_policy_learned_where_gymnasium_has_no_such_task_plays_and_is_tested(tmp_path):
    chosen = settings(
        task={"env": "CheetahRun-v1", "vectorize": "envpool", "max_episode_steps": 50},
        algorithm=PPO,
        stop={"env_steps": 600},
        schedule={"kind": "serial", **SCHEDULE, "executors": 1},
        evaluation={
            "enabled": True,
            "rule": "mean_return",
            "max_episode_steps": 30,
            "screen_steps": 30,
            "episodes": 2,
            "threshold": 900,
        },
    )
    result, run = run_here(chosen, tmp_path)
    assert result.steps >= 600
    assert run.all("evaluation")
    policy = load_policy(tmp_path / "latest")
    first, again = (list(policy.play(1, seed=4, max_episode_steps=20)) for _ in range(2))
    assert first == again
    assert (first[0].steps, first[0].terminated) == (20, False)
