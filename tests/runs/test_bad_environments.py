"""Environments that misbehave: the fault is named and located, the row is not kept, the run goes on in its budget."""

from pathlib import Path

import pytest

from mlxe_async.errors import NumericError, RunFailed

FAULTS = {
    "raises": "ValueError",
    "wrong_shape": "shape",
    "not_a_number": "finite",
    "exits": "SystemExit",
}


RARER = ("wrong_shape", "exits")


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.slow) if fault in RARER else fault for fault in FAULTS]
)
def test_a_fault_now_and_then_is_told_and_survived(live, fault):
    result, run = live(
        task={"env": f"bad_tasks:Bad{fault.title().replace('_', '')}-v0", "max_episode_steps": 50},
        supervision={"env_fault_limit": 1000},
        stop={"env_steps": 400},
    )
    assert result.reason == "env_steps"
    errors = run.all("env_error")
    assert errors
    assert all(FAULTS[fault] in line["message"] + line["trace"] for line in errors)
    assert {(line["role"], line["phase"], line["step"]) for line in errors} == {("executor", "step", 31)}
    assert all(line["seed"] is not None for line in errors)
    assert not run.all("proc_exit", expected=False)
    assert run.all("ledger")[-1]["ingested"] == result.steps


def test_an_environment_that_is_not_to_fail_ends_the_run_with_its_reason(live):
    with pytest.raises(RunFailed, match=r"at most 0 environment faults.*broken at step 30"):
        live(
            task={"env": "bad_tasks:BadRaises-v0", "max_episode_steps": 50},
            schedule={"kind": "oa", "min_executors": 2},
            stop={"env_steps": 100_000},
            supervision={"env_fault_limit": 0},
        )


def test_a_nan_ends_the_run_where_it_is_not_to_be_forgiven(live):
    with pytest.raises(NumericError, match="expected finite numbers, got nan") as caught:
        live(
            task={"env": "bad_tasks:BadNotANumber-v0", "max_episode_steps": 50},
            supervision={"nonfinite": "stop"},
            stop={"env_steps": 100_000},
        )
    assert caught.value.exit_code == 5


def test_an_environment_that_ends_its_process_is_restarted_with_the_process(live):
    result, run = live(
        task={"env": "bad_tasks:BadDies-v0", "max_episode_steps": 50},
        schedule={"kind": "oa"},
        supervision={"restart_limit": 1000, "backoff_s": 0.01},
        stop={"env_steps": 300},
    )
    assert result.reason == "env_steps"
    deaths = run.all("proc_exit", expected=False)
    assert deaths
    assert all("exited with code 7" in line["sentence"] for line in deaths)


@pytest.mark.slow
def test_an_executor_that_hangs_in_each_life_is_given_up_although_it_makes_progress(live):
    with pytest.raises(RunFailed, match=r"mlxe-exe-0 hung in 3 lives in a row.*supervision.restart_limit"):
        live(
            task={
                "env": "misbehaving:Chaos-v0",
                "kwargs": {"fault": "sleep", "step": 60, "times": 1, "lives": 0},
                "max_episode_steps": None,
            },
            run={"python_path": [str(Path(__file__).parents[1] / "faults")]},
            schedule={"kind": "oa", "step_timeout_s": 0.5},
            supervision={"restart_limit": 2, "backoff_s": 0.01},
            stop={"env_steps": 10**7},
        )


@pytest.mark.long
@pytest.mark.parametrize("env", ["PatchesNumpy", pytest.param("DiesInOneExecutor", marks=pytest.mark.slow)])
def test_what_an_environment_breaks_in_its_executor_is_that_executors_death_and_the_others_go_on(live, env):
    result, run = live(
        algorithm={"name": "ppo"},
        task={"env": f"bad_tasks:{env}-v0", "max_episode_steps": 20},
        schedule={"kind": "oa", "executors": 2, "envs_per_executor": 2, "rollout_steps": 64},
        supervision={"backoff_s": 0.01, "restart_limit": 1000},
        stop={"env_steps": 2000},
    )
    assert result.reason == "env_steps"
    deaths = run.all("proc_exit", expected=False)
    assert {line["process"] for line in deaths} == {"mlxe-exe-1"}
    told = {
        "PatchesNumpy": "ExecutorBroken: TypeError: numpy as the environment wants it",
        "DiesInOneExecutor": "code 7",
    }
    assert all(told[env] in line["sentence"] for line in deaths)


def test_an_executor_that_dies_in_each_life_before_its_rollout_is_delivered_ends_a_run_whose_others_wait(live):
    with pytest.raises(RunFailed, match=r"mlxe-exe-1 died 3 times in 60 s; at last: .* exited with code 7"):
        live(
            algorithm={"name": "ppo"},
            task={"env": "bad_tasks:DiesInOneExecutor-v0", "max_episode_steps": 20},
            schedule={"kind": "is", "executors": 2, "sync": "rollout", "rollout_steps": 64},
            supervision={"backoff_s": 0.01, "restart_limit": 2},
            stop={"env_steps": 2000},
        )


@pytest.mark.slow
def test_a_child_that_an_environment_forks_cannot_go_on_as_the_executor(live):
    result, run = live(
        task={"env": "bad_tasks:BadForks-v0", "max_episode_steps": 50},
        supervision={"env_fault_limit": 1000},
    )
    assert result.reason == "env_steps"
    assert not run.all("env_error")
    assert not run.all("corrupt_record")
    assert not run.all("proc_exit", expected=False)
    ledger = run.all("ledger")[-1]
    assert (ledger["lost"], ledger["torn"], ledger["ingested"]) == (0, 0, result.steps)
