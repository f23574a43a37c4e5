"""`istb`: the same roles as threads of one process, bit for bit what `is` does, and restarted as one."""

import os
import signal

import pytest
from live_runs import EVALUATED, TESTED
from test_determinism import story
from test_run_deaths import balanced


def under_is(live, **tables):
    return live(**{**tables, "schedule": {**tables.get("schedule", {}), "kind": "is"}})


@pytest.mark.long
def test_threads_change_nothing_in_what_is_learned(live, undisturbed):
    threads, threads_run = live(schedule={"kind": "istb"}, **TESTED)
    processes, processes_run = undisturbed
    assert threads.weights_hash == processes.weights_hash
    assert story(threads_run) == story(processes_run)
    assert {line["process"] for line in threads_run.all("proc_start")} == {"mlxe-istb", "mlxe-eval"}


@pytest.mark.slow
@pytest.mark.parametrize("executors", [1, 3])
def test_one_or_three_threads_change_nothing_either(live, executors):
    tables = {"evaluation": EVALUATED, "schedule": {"executors": executors}}
    threads, threads_run = live(**{**tables, "schedule": {"kind": "istb", "executors": executors}})
    processes, processes_run = under_is(live, **tables)
    assert threads.weights_hash == processes.weights_hash
    assert story(threads_run) == story(processes_run)
    assert {line["process"] for line in threads_run.all("proc_start")} == {"mlxe-istb", "mlxe-eval"}


@pytest.mark.slow
def test_rollouts_of_steps_are_the_same_too(live):
    tables = {"schedule": {"envs_per_executor": 3, "rollout_steps": 20}, "stop": {"env_steps": 1200}}
    threads, _ = live(**{**tables, "schedule": {**tables["schedule"], "kind": "istb"}})
    assert threads.weights_hash == under_is(live, **tables)[0].weights_hash


@pytest.mark.slow
def test_looking_once_a_second_changes_nothing_but_the_time(live):
    tables = {"stop": {"env_steps": 60}}
    published, run = live(**tables, schedule={"kind": "istb", "flavour": "as_published"})
    assert published.weights_hash == under_is(live, **tables)[0].weights_hash
    rounds = len(run.all("phase", phase="learn"))
    assert published.seconds > rounds


def test_threads_are_at_work_at_the_same_time(live):
    result, run = live(
        schedule={"kind": "istb"},
        task={"env": "CartPole-v1", "max_episode_steps": 60, "wrappers": ["slow_tasks:MeetsTheOther"]},
        stop={"env_steps": 300},
    )
    # Each episode's first step waited for that of the other thread: one after the other would have raised.
    assert result.reason == "env_steps"
    assert not run.all("env_error")


@pytest.mark.long
def test_the_process_that_holds_them_is_killed_and_all_begin_their_rollouts_again(live):
    async def kill(run):
        for round_ in (3, 6):
            await run.saw("weights", times=round_)
            os.kill(run.pid("mlxe-istb"), signal.SIGKILL)
            again = await run.saw("proc_start", times=2 if round_ == 3 else 3, process="mlxe-istb")
            await run.saw("weights", after=again["seq"])

    result, run = live(kill, schedule={"kind": "istb"}, stop={"env_steps": 4000})
    assert result.reason == "env_steps"
    assert len(run.all("proc_exit", process="mlxe-istb", expected=False)) == 2
    assert any("goes on from there too" in line["message"] for line in run.all("warning"))
    versions = [line["version"] for line in run.all("weights")]
    assert versions == sorted(set(versions))
    played = [(line["idx"], line["episode"]) for line in run.all("episode_end")]
    assert len(played) == len(set(played)) == result.episodes
    balanced(run)


@pytest.mark.long
def test_one_thread_that_hangs_is_found_although_the_others_wait_in_order(live):
    result, run = live(
        schedule={"kind": "istb", "step_timeout_s": 0.5, "reset_timeout_s": 2.0},
        task={"env": "slow_tasks:HangsOnce-v0", "max_episode_steps": 50},
        stop={"env_steps": 600},
    )
    assert result.reason == "env_steps"
    (hang,) = run.all("hang")
    assert (hang["process"], hang["call"]) == ("mlxe-istb", "step")
    (stack,) = run.all("hang_stack")
    assert "slow_tasks.py" in stack["stack"]
    balanced(run)


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param("is", marks=pytest.mark.slow), "istb"])
def test_an_executor_that_is_given_up_leaves_the_others_at_work(live, kind):
    result, run = live(
        schedule={"kind": kind},
        task={"env": "slow_tasks:BreaksForOne-v0", "max_episode_steps": 50},
        stop={"env_steps": 600},
        supervision={"env_fault_limit": 2},
    )
    assert result.reason == "env_steps"
    assert any("executor 1 is given up" in line["message"] for line in run.all("warning"))
    assert not run.all("proc_exit", expected=False)
    assert {line["idx"] for line in run.all("phase", phase="generate")[-3:]} == {0}
    balanced(run)


def test_a_stop_in_the_middle_of_rollouts_ends_the_threads(live):
    async def stop(run):
        await run.saw("weights", times=2)
        run.supervisor.request_stop("SIGINT")

    result, _ = live(
        stop, schedule={"kind": "istb"}, task={"env": "CartPole-v1", "wrappers": ["slow_tasks:SlowSecond"]}
    )
    assert (result.reason, result.exit_code) == ("SIGINT", 130)
