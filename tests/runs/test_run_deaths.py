"""Processes of a live run are killed, and it goes on with nothing committed lost."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from live_runs import LiveRun, on_loop

from mlxe_async.ipc.processes import nursery
from mlxe_async.settings import load_settings
from mlxe_async.supervisor import run as run_module

SETTINGS = Path(__file__).parents[2] / "settings"
OA = {"kind": "oa", "executors": 2, "updates_per_publish": 4}
ENDLESS = {"env_steps": 10**7}


def balanced(run):
    ledger = run.all("ledger")[-1]
    assert (ledger["lost"], ledger["torn"]) == (0, 0)
    assert ledger["committed"] == ledger["ingested"] + ledger["backlog"]
    for lane in ledger["lanes"]:
        assert lane["committed_blocks"] == lane["position"] + lane["backlog_blocks"]


@pytest.mark.parametrize(
    "process", ["mlxe-mem", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlxe-exe-0", "mlxe-lrn"))]
)
def test_a_process_that_is_killed_comes_back_and_the_run_goes_on(live, process):
    async def kill(run):
        await run.saw("weights", times=3)
        os.kill(run.pid(process), signal.SIGKILL)
        again = await run.saw("proc_start", times=2, process=process)
        # Both kinds of work go on after the restart.
        await run.saw("phase", phase="generate", after=again["seq"])
        await run.saw("weights", after=again["seq"])
        run.supervisor.request_stop("enough")

    result, run = live(kill, schedule={**OA, "memorizer": "own"}, stop=ENDLESS)
    assert result.reason == "enough"
    (death,) = run.all("proc_exit", process=process, expected=False)
    assert death["signal"] == "SIGKILL"
    versions = [line["version"] for line in run.all("weights")]
    assert versions == sorted(set(versions))
    balanced(run)


@pytest.mark.parametrize(
    ("every", "words"),
    [(1, "goes on from there too"), pytest.param(10**6, "publications before", marks=pytest.mark.slow)],
)
def test_a_learner_that_is_killed_says_what_it_goes_on_with_and_keeps_the_versions(live, every, words):
    async def kill(run):
        before = await run.saw("weights", times=3)
        os.kill(run.pid("mlxe-lrn"), signal.SIGKILL)
        after = await run.saw("weights", after=(await run.saw("proc_start", times=2, process="mlxe-lrn"))["seq"])
        assert after["version"] > before["version"]
        assert after["updates"] >= before["updates"]
        run.supervisor.request_stop("enough")

    result, run = live(kill, schedule=OA, stop=ENDLESS, learner={"keep_state_every": every})
    assert any(words in line["message"] for line in run.all("warning"))
    assert result.weights_hash is not None
    balanced(run)


@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("serial", "is")), "oa"])
def test_a_nursery_that_is_killed_takes_all_with_it_and_all_come_back(live, kind):
    async def kill(run):
        await run.saw("weights", times=2)
        seq = run.lines[-1]["seq"]
        os.kill(run.supervisor._nursery.pid, signal.SIGKILL)
        await run.saw("weights", after=(await run.saw("proc_start", after=seq))["seq"])
        run.supervisor.request_stop("enough")

    result, run = live(kill, schedule={"kind": kind, "executors": 2}, stop=ENDLESS)
    assert result.reason == "enough"
    assert run.all("proc_exit", process="mlxe-nursery", expected=False)
    balanced(run)


@pytest.mark.slow
def test_a_guard_that_is_killed_takes_all_with_it_and_all_come_back(live):
    async def kill(run):
        await run.saw("weights", times=2)
        seq = run.lines[-1]["seq"]
        os.kill(run.supervisor._nursery.guard_pid, signal.SIGKILL)
        await run.saw("weights", after=(await run.saw("proc_start", after=seq))["seq"])
        run.supervisor.request_stop("enough")

    result, run = live(kill, schedule=OA, stop=ENDLESS)
    assert result.reason == "enough"
    (death,) = run.all("proc_exit", process="mlxe-nursery", expected=False)
    assert death["sentence"].startswith("the guard (pid ")
    assert not any("guard" in line["message"] for line in run.all("warning"))
    balanced(run)


@pytest.mark.long
def test_a_run_whose_guard_cannot_do_all_says_so_once(live, monkeypatch):
    lack = "from mlxe_async.ipc.processes import linux, nursery_main as n; linux.command_line_area = lambda: None; "
    monkeypatch.setattr(nursery, "PROGRAM", ("-c", f"import sys; {lack} n.main(sys.argv[1:])"))

    async def look(run):
        await run.enough("weights", times=1)

    _, run = live(look, schedule=OA, stop=ENDLESS)
    (told,) = [line["message"] for line in run.all("warning") if "guard" in line["message"]]
    assert told.startswith("the guard cannot hide its command line from pkill -f; what environments have started may")


def test_an_executor_that_is_stopped_is_found_hanging_and_replaced(live):
    async def stop(run):
        await run.saw("weights", times=2)
        os.kill(run.pid("mlxe-exe-1"), signal.SIGSTOP)
        again = await run.saw("proc_start", times=2, process="mlxe-exe-1")
        await run.saw("phase", phase="generate", idx=1, after=again["seq"])
        run.supervisor.request_stop("enough")

    result, run = live(stop, schedule={**OA, "step_timeout_s": 0.5, "reset_timeout_s": 1.0}, stop={"env_steps": 10**6})
    assert result.reason == "enough"
    balanced(run)


OTHERS = [pytest.param(event, marks=pytest.mark.slow) for event in ("run_start", "proc_start", "episode_end")]


@pytest.mark.parametrize("event", ["weights", *OTHERS])
def test_a_run_that_is_cancelled_leaves_nothing(live, event):
    async def cancel(run):
        await run.saw(event)
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__ == "Supervisor.run":
                task.cancel()

    with pytest.raises(asyncio.CancelledError):
        live(cancel, schedule=OA, stop={"env_steps": 10**6})


def test_a_run_that_is_cancelled_does_not_wait_for_an_executor_that_hangs(live, monkeypatch):
    """As after a second signal; an orderly stop would give it its grace."""
    monkeypatch.setattr(run_module, "STOP_GRACE_S", 90.0)
    began = []

    async def cancel(run):
        await run.saw("weights")
        os.kill(run.pid("mlxe-exe-1"), signal.SIGSTOP)
        began.append(time.monotonic())
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__ == "Supervisor.run":
                task.cancel()

    patient = {"step_timeout_s": 120.0, "reset_timeout_s": 120.0}
    with pytest.raises(asyncio.CancelledError):
        live(cancel, schedule={**OA, **patient}, stop={"env_steps": 10**6})
    assert time.monotonic() - began[0] < 45.0


def test_a_requested_stop_saves_the_weights(live):
    async def stop(run):
        await run.saw("weights", times=2)
        run.supervisor.request_stop("SIGTERM")

    result, run = live(stop, schedule=OA, stop={"env_steps": 10**6})
    assert (result.reason, result.exit_code) == ("SIGTERM", 143)
    assert run.all("checkpoint")[-1]["version"] == run.all("weights")[-1]["version"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_with_an_executor_and_then_the_learner_killed_the_main_job_is_still_solved(tmp_path, seed):
    async def main():
        preset = load_settings(SETTINGS / "oa.toml", {"run.seed": seed, "run.dir": str(tmp_path)})
        run = LiveRun(preset, tmp_path)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(run.supervisor.run())
            # Before the first checkpoint, and before there is much to be lost.
            await run.saw("weights", times=3)
            os.kill(run.pid("mlxe-exe-0"), signal.SIGKILL)
            await run.saw("proc_start", times=2, process="mlxe-exe-0")
            await run.saw("weights", times=10)
            os.kill(run.pid("mlxe-lrn"), signal.SIGKILL)
            await run.saw("proc_start", times=2, process="mlxe-lrn")
        return running.result(), run

    result, run = on_loop(main)
    assert result.solved
    assert result.reason == "solved"
    balanced(run)
