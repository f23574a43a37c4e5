"""Algorithms that a user wrote on plain torch modules: each schedule, death and resumption is theirs, too."""

import os
import shutil
import signal

import live_runs
import numpy as np
import pytest
from live_runs import HERE
from resume_tools import SAVING, run_here, settings, whole_numbers

from mlxe_async import load_policy

PENDULUM = {"env": "Pendulum-v1", "max_episode_steps": 50}
MASKED = {"env": "CartPole-v1", "max_episode_steps": 100, "wrappers": ["masked_tasks:PositionsOnly"]}
SHORT = {"sync": "rollout", "rollout_steps": 20, "envs_per_executor": 2}
TESTED = {"enabled": True, "rule": "mean_return", "threshold": 1e6, "episodes": 3, "max_episode_steps": 50}
CASES = {
    "sac": {
        "algorithm": {"name": "own_sac:SAC", "start_rows": 100, "batch": 32, "layers": [16]},
        "task": PENDULUM,
        "stop": {"env_steps": 240},
    },
    "gaussian ppo": {
        "algorithm": {"name": "own_ppo:GaussianPPO", "epochs": 2, "rows_per_update": 160},
        "task": PENDULUM,
        "schedule": SHORT,
    },
    "recurrent ppo": {
        "algorithm": {"name": "own_ppo:RecurrentPPO", "epochs": 2, "rows_per_update": 160},
        "task": MASKED,
        "schedule": SHORT,
    },
    "choosing ppo": {
        "algorithm": {"name": "own_ppo:ChoosingPPO", "epochs": 2, "rows_per_update": 160},
        "task": {"env": "parted_tasks:Switches", "action_mask": True},
        "schedule": SHORT,
    },
    "reinforce": {"algorithm": {"name": "own_reinforce:REINFORCE", "rows_per_update": 120}},
}


def cases(quick):
    return pytest.mark.parametrize(
        "case", [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
    )


def tables(case, kind="is", **schedule):
    known = {"stop": {"env_steps": 400}, **CASES[case], "evaluation": TESTED}
    known["schedule"] = {"executors": 2, **known.get("schedule", {}), "kind": kind, **schedule}
    return known


def told(run):
    return [(line["version"], line["updates"], line["norm"]) for line in run.all("weights")]


@cases(quick=())
def test_the_synchronous_schedule_equals_the_serial_one_bit_for_bit(live, case):
    serial, first = live(**tables(case, "serial"))
    together, second = live(**tables(case, "is"))
    assert serial.weights_hash == together.weights_hash
    assert told(first) == told(second)
    assert together.updates > 1
    assert first.all("evaluation")


@cases(quick=())
def test_a_learner_that_is_killed_changes_nothing(live, case):
    async def kill(run):
        for times in (2, 4):
            await run.saw("weights", times=times)
            os.kill(run.pid("mlxe-lrn"), signal.SIGKILL)
            await run.saw("proc_start", times=times // 2 + 1, process="mlxe-lrn")

    undisturbed, _ = live(**tables(case))
    killed, run = live(kill, **tables(case))
    assert len(run.all("proc_exit", process="mlxe-lrn", expected=False)) == 2
    assert killed.weights_hash == undisturbed.weights_hash


@pytest.mark.long
@pytest.mark.parametrize("kind", ["is", pytest.param("serial", marks=pytest.mark.slow)])
@cases(quick=("recurrent ppo",))
def test_going_on_from_a_checkpoint_leads_to_the_same_weights(tmp_path, case, kind):
    chosen = settings(**tables(case, kind))
    saving = settings(**tables(case, kind), **SAVING)
    plain, _ = run_here(chosen, tmp_path)
    saved, lines = run_here(saving, tmp_path)
    assert saved.weights_hash == plain.weights_hash
    kept = sorted(int(path.name) for path in (saved.run_dir / "checkpoints").iterdir())
    first = min(set(kept) & set(whole_numbers(lines)))
    for number in kept:
        if number > first:
            shutil.rmtree(saved.run_dir / "checkpoints" / str(number))
    again, run = run_here(saving, resume=saved.run_dir)
    assert run.all("run_resume")[0]["exact"]
    assert again.weights_hash == plain.weights_hash
    assert (again.steps, again.updates) == (plain.steps, plain.updates)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_where_nobody_waits_it_learns_is_tested_and_goes_on(tmp_path, case):
    fresh = {"max_policy_lag": 0} if case == "reinforce" else {}  # which corrects for nothing
    saving = {**tables(case, "oa", **fresh), **SAVING}
    first, _ = run_here(settings(**saving), tmp_path)
    assert first.updates > 0
    saving["stop"] = {"env_steps": 2 * saving["stop"]["env_steps"]}
    again, run = run_here(settings(**saving), resume=first.run_dir)
    assert again.steps > first.steps
    assert again.updates > first.updates
    assert run.all("run_resume")[0]["previous_run_died"] is False


@pytest.mark.long
def test_what_no_state_can_hold_is_told_once(live):
    chosen = tables("reinforce", "serial")
    chosen |= {"algorithm": {"name": "own_reinforce:Remembers", "rows_per_update": 60}, "stop": {"env_steps": 160}}
    result, run = live(**chosen)
    assert result.updates > 1
    (told,) = [line for line in run.lines if "history (deque)" in str(line)]
    assert "begins without" in told["message"]


@pytest.mark.long
def test_a_recurrent_policy_is_loaded_and_forgets_at_a_reset(live, tmp_path):
    result, _ = live(**(tables("recurrent ppo", "serial") | {"stop": {"env_steps": 160}}))
    policy = load_policy(result.run_dir)
    obs = np.array([[0.01, 0.02], [-0.3, 0.1]], np.float32)
    policy.act(obs)
    carried = policy._acting.carry["hidden"].copy()
    policy.act(obs)
    assert not np.array_equal(policy._acting.carry["hidden"], carried)
    policy.reset()
    policy.act(obs)
    np.testing.assert_array_equal(policy._acting.carry["hidden"], carried)
    (episode,) = policy.play(1, max_episode_steps=20)
    assert 1 <= episode.steps <= 20


@pytest.fixture
def patient(monkeypatch):
    """Runs of this test may take longer than others, also on a busy machine."""
    monkeypatch.setattr(live_runs, "LIMIT_S", 1800.0)


def learned(live, seed=0, threshold=0.0, **chosen):
    """Whether a run solved its task, and the run."""
    chosen["stop"] = {**chosen["stop"], "solved": True}
    chosen["run"] = {"name": "test", "seed": seed, "python_path": [str(HERE)]}
    tested = {"enabled": True, "rule": "mean_return", "threshold": threshold, "episodes": 10, "screen_steps": 1}
    result, run = live(**chosen, evaluation=tested)
    return result.reason == "solved", run


@pytest.mark.slow
def test_choices_of_parts_under_a_mask_are_learned(live):
    """Eight steps with both switches right are worth 8; by chance, among what is allowed, 4."""
    solved, run = learned(
        live,
        threshold=7.5,
        algorithm={"name": "own_ppo:ChoosingPPO", "rows_per_update": 512, "learning_rate": 5e-3, "discount": 0.0},
        task={"env": "parted_tasks:Switches", "action_mask": True},
        schedule={"kind": "is", "executors": 1, "sync": "rollout", "envs_per_executor": 8, "rollout_steps": 64},
        stop={"env_steps": 20_000},
    )
    assert solved
    assert not run.all("env_error")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_normal_numbers_learn_the_pendulum(live):
    solved, _ = learned(
        live,
        threshold=-300.0,
        algorithm={"name": "own_ppo:GaussianPPO", "discount": 0.9, "learning_rate": 3e-3},
        task={"env": "Pendulum-v1", "max_episode_steps": 200},
        schedule={"kind": "is", "executors": 1, "sync": "rollout", "envs_per_executor": 8, "rollout_steps": 256},
        stop={"env_steps": 200_000},
    )
    assert solved


MEMORY = {
    "task": {**MASKED, "max_episode_steps": 500},
    "schedule": {"kind": "is", "executors": 1, "sync": "rollout", "envs_per_executor": 16, "rollout_steps": 128},
    "stop": {"env_steps": 200_000},
}


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_recurrent_cell_balances_a_pole_whose_velocities_are_hidden(live):
    solved, _ = learned(
        live, threshold=300.0, algorithm={"name": "own_ppo:RecurrentPPO", "learning_rate": 3e-3}, **MEMORY
    )
    assert solved


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_who_remembers_nothing_does_not(live):
    tables = {**MEMORY, "schedule": {**MEMORY["schedule"]}}
    _, run = learned(live, threshold=300.0, algorithm={"name": "ppo", "entropy": 0.0}, **tables)
    assert max(line["return_mean"] for line in run.all("evaluation")) < 120


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("seed", range(3))
def test_soft_actor_critic_learns_the_pendulum(live, seed):
    solved, _ = learned(
        live,
        seed,
        threshold=-200.0,
        algorithm={"name": "own_sac:SAC"},
        task={"env": "Pendulum-v1", "max_episode_steps": 200},
        schedule={"kind": "is", "executors": 1},
        stop={"env_steps": 15_000},
    )
    assert solved


def steps_shown(live, **tables):
    """Different steps of episodes of 400 that a learner was shown in its last update."""
    _, run = live(
        task={"env": "mlxe_async.testing.counting:CountingEnv", "kwargs": {"length": 400}, "max_episode_steps": 400},
        algorithm={"name": "shown_steps:Shown"},
        schedule={"kind": "is", "executors": 1, "sync": "episode"},
        stop={"env_steps": 800},
        **tables,
    )
    return run.all("phase", phase="learn")[-1]["losses"]["steps"]


@pytest.mark.long
def test_rows_from_the_beginning_of_long_episodes_are_replayed_unless_the_settings_say_otherwise(live):
    assert steps_shown(live) > 350
    assert 50 < steps_shown(live, memory={"keep_rows": 100}) <= 100
