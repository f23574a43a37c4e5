"""Of each process of a run it is told how its time was spent, and no moment is missing."""

import os
import signal
from collections import defaultdict

import pytest

from mlxe_async.ipc.shared.hours import MODES

TABLES = {
    "serial": {"schedule": {"kind": "serial"}},
    "istb": {"schedule": {"kind": "istb"}},
    "is": {"schedule": {"kind": "is"}},
    "ia": {"schedule": {"kind": "ia"}},
    "oa": {"schedule": {"kind": "oa"}},
}
MOST_AT_ONCE = 64  # updates that a fast twin does in one call
WORK = {"acting", "stepping", "updating", "publishing", "drawing", "taking_in", "testing"}


def lived(run):
    """Seconds from the request for a process to its death, over all lives, by its name."""
    began, found = {}, defaultdict(float)
    for line in run.all("proc_start"):
        began[line["process"], line["epoch"]] = line["mono_ns"] / 1e9 - line["seconds"]
    for line in run.all("proc_exit"):
        if (start := began.get((line["process"], line["epoch"]))) is not None:
            found[line["process"]] += line["mono_ns"] / 1e9 - start
    return found


def told(run):
    """The last word on each process and thread, as (process, role, number) -> seconds by mode."""
    return {(line["process"], line["role"], line["idx"]): line["seconds"] for line in run.all("times")}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "is" else pytest.mark.long) for kind in TABLES]
)
def test_the_modes_of_every_process_add_up_to_the_time_that_it_lived(live, kind):
    chosen = {"env_steps": 3000} if kind == "oa" else {"env_steps": 600}
    result, run = live(algorithm={"name": "mlxe", "min_updates": 4, "batch": 64}, stop=chosen, **TABLES[kind])
    assert result.exit_code == 0
    wall, found = lived(run), told(run)
    assert {process for process, _, _ in found} == set(wall) - {"mlxe-nursery"}
    for (process, role, idx), seconds in found.items():
        assert set(seconds) <= set(MODES)
        assert sum(seconds.values()) == pytest.approx(wall[process], rel=0.02, abs=0.03), (process, role, idx)
    spent = defaultdict(float)
    for seconds in found.values():
        for mode, one in seconds.items():
            spent[mode] += one
    assert {"starting", "waiting"} | WORK - {"testing"} <= set(spent)
    assert spent["working"] < 0.1 * sum(spent.values())
    counted = defaultdict(int)
    for line in run.all("times"):
        for mode, spells in line["histograms"].items():
            counted[mode] += sum(spells.values())
            assert line["latencies"][mode]["count"] == sum(spells.values())
            assert 0 < line["latencies"][mode]["p50"] <= line["latencies"][mode]["p99"] < 60
    assert set(counted) <= {"acting", "stepping", "updating", "publishing"}
    assert counted["stepping"] >= result.steps  # one environment for each executor: a call for each step
    assert counted["updating"] >= result.updates / MOST_AT_ONCE
    assert counted["publishing"] >= len(run.all("weights"))


@pytest.mark.long
def test_a_killed_executors_time_is_that_of_both_lives(live):
    async def kill(run):
        await run.saw("phase", phase="generate")
        (pid,) = {line["pid"] for line in run.all("proc_start", process="mlxe-exe-0")}
        os.kill(pid, signal.SIGKILL)
        await run.saw("proc_restart", process="mlxe-exe-0")

    result, run = live(kill, schedule={"kind": "is"}, stop={"env_steps": 3000})
    assert result.exit_code == 0
    wall, found = lived(run), told(run)
    seconds = found["mlxe-exe-0", "executor", 0]
    assert len(run.all("proc_start", process="mlxe-exe-0")) == 2
    assert sum(seconds.values()) == pytest.approx(wall["mlxe-exe-0"], rel=0.02, abs=0.05)


def test_an_environment_that_sleeps_is_time_spent_in_stepping(live):
    result, run = live(task={"wrappers": ["slow_tasks:SlowFirst"]}, schedule={"kind": "is"}, stop={"env_steps": 200})
    assert result.exit_code == 0
    seconds = told(run)["mlxe-exe-0", "executor", 0]
    busy = {mode: one for mode, one in seconds.items() if mode not in ("starting", "waiting")}
    assert max(busy, key=busy.get) == "stepping"
