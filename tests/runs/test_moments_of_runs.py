"""Observations that a network is shown normalised: each row that was taken in counts once, in whole runs."""

import os
import signal

import numpy as np
import pytest
from live_runs import LiveRun
from resume_tools import SAVING, run_here, settings

from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.policy import load_policy

KINDS = ("is", "serial", "istb", "ia", "oa")
NORMALISING = {
    "algorithm": {"name": "mlxe", "min_updates": 6, "batch": 64, "normalise": True},
    "memory": {"capacity_rows": 20_000, "block_rows": 8},
    "stop": {"env_steps": 900},
}


def look(run, seen):
    """Note at the end of a run what its memory counted and what it holds."""

    def hear(line):
        if line["event"] == "run_end":
            supervisor = run.supervisor
            memory = ReplayMemory(
                supervisor._startup.blueprint.memory_shape, supervisor._startup.segments["memory"].buffer
            )
            taken = sum(lane["rows"] - lane["dropped"] for lane in memory.ledger())
            closed = memory.columns(memory.live())["obs"].astype(np.float64)
            seen.update(told=memory.moments(), taken=taken, closed=closed, books=memory._books.moments.copy())

    run.hooks.append(hear)


def check(seen):
    mean, variance, count = seen["told"]
    assert count == seen["taken"] > 0
    closed = seen["closed"]
    if count == len(closed):  # nothing is open: all that counts is there to be looked at
        np.testing.assert_allclose(mean, closed.mean(0), rtol=1e-9)
        np.testing.assert_allclose(variance, closed.var(0), rtol=1e-9)


def published(result):
    policy = load_policy(result.run_dir)
    return policy.algorithm.moments_in(policy.flat)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [kind if kind in ("is", "oa") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_as_many_rows_count_as_steps_were_made_under_every_schedule(live, kind):
    seen = {}

    async def body(run):
        look(run, seen)
        await run.saw("run_end")

    result, _ = live(body, schedule={"kind": kind}, **NORMALISING)
    check(seen)
    moments = published(result)
    if kind in ("is", "serial", "istb"):
        assert seen["told"][-1] == result.steps
        assert len(seen["closed"]) == result.steps
        # They were learned from all, and what was published is what they were learned by.
        assert moments.rows == pytest.approx(result.steps, rel=1e-5)
        np.testing.assert_allclose(moments.mean, seen["told"][0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(moments.variance, seen["told"][1], rtol=1e-5)
    else:
        assert 0 < moments.rows <= seen["told"][-1] * (1 + 1e-5)


@pytest.mark.parametrize(
    "process", [pytest.param(name, marks=pytest.mark.slow) for name in ("mlxe-mem", "mlxe-lrn", "mlxe-exe-1")]
)
def test_who_is_killed_is_followed_by_one_that_counts_the_same(live, process):
    schedule = {"kind": "is", "memorizer": "own"}
    plain, after = {}, {}

    async def watch(run):
        look(run, plain)
        await run.saw("run_end")

    async def kill(run):
        look(run, after)
        for round_ in range(2, 5):
            await run.saw("weights", times=round_)
            os.kill(run.pid(process), signal.SIGKILL)
            await run.saw("proc_start", times=round_, process=process)

    undisturbed, _ = live(watch, schedule=schedule, **NORMALISING)
    result, run = live(kill, schedule=schedule, **NORMALISING)
    assert run.all("proc_exit", process=process, expected=False)
    check(after)
    if process == "mlxe-lrn":  # its optimiser starts fresh, so that other episodes follow
        assert after["told"][-1] == result.steps
    else:
        assert result.weights_hash == undisturbed.weights_hash
        assert after["books"].tobytes() == plain["books"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("process", ["mlxe-exe-0", "mlxe-mem"])
def test_where_nobody_waits_each_row_that_came_counts_once_through_deaths(live, process):
    seen = {}

    async def kill(run):
        look(run, seen)
        for round_ in range(2, 5):
            await run.saw("weights", times=2 * round_)
            os.kill(run.pid(process), signal.SIGKILL)
            await run.saw("proc_start", times=round_, process=process)

    chosen = {**NORMALISING, "stop": {"env_steps": 3000}}
    _, run = live(kill, schedule={"kind": "oa", "memorizer": "own"}, **chosen)
    assert run.all("proc_exit", process=process, expected=False)
    check(seen)


def resumed(chosen, path, seen, monkeypatch):
    made = LiveRun.__init__

    def watched(self, *arguments):
        made(self, *arguments)
        look(self, seen)

    monkeypatch.setattr(LiveRun, "__init__", watched)
    return run_here(chosen, resume=path)


@pytest.mark.slow
@pytest.mark.parametrize("executors", [2, 3])
def test_a_run_that_goes_on_counts_on(tmp_path, monkeypatch, executors):
    first, _ = run_here(settings(**{**NORMALISING, **SAVING}), tmp_path)
    seen, longer = {}, {**NORMALISING, **SAVING, "stop": {"env_steps": 1800}}
    result, run = resumed(settings(**longer, schedule={"executors": executors}), first.run_dir, seen, monkeypatch)
    (told,) = run.all("run_resume")
    assert told["env_steps"] == first.steps < result.steps
    assert seen["told"][-1] == result.steps
    assert published(result).rows == pytest.approx(result.steps, rel=1e-5)
    if executors == 2:
        whole, _ = run_here(settings(**longer), tmp_path)
        assert result.weights_hash == whole.weights_hash
        check(seen)


@pytest.mark.slow
def test_a_run_that_begins_with_the_weights_of_another_counts_on_from_theirs(tmp_path, monkeypatch):
    first, _ = run_here(settings(**NORMALISING), tmp_path)
    seen = {}
    made = LiveRun.__init__

    def watched(self, *arguments):
        made(self, *arguments)
        look(self, seen)

    monkeypatch.setattr(LiveRun, "__init__", watched)
    second, _ = run_here(settings({"run.init_from": str(first.run_dir)}, **NORMALISING), tmp_path)
    assert seen["told"][-1] == first.steps + second.steps
