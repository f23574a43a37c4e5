"""An environment that hangs while it is probed ends the command within its limit; so does whoever asks it to stop."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import leaks
import pytest
from command import Command
from live_runs import on_loop

from mlxe_async.errors import Hung, StoppedEarly
from mlxe_async.settings import load_settings
from mlxe_async.supervisor import Supervisor

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "faults"))

from misbehaving.faults import HANGING, WITHOUT_STACK  # noqa: E402 - found by the line above

LIMIT_S = 2.0
LEAST_S = LIMIT_S / 2  # the limit runs from the call on; the mark is made in it, later on a busy host
LATER_S = 1.0  # after the limit: to be judged, to write its stack, and to end the program
PLACES = {"import": "import", "make": "make", "reset": "reset", "step": "step", "later": "step"}

TOML = """
[run]
name = "hangs"
python_path = ["{here}"]
[task]
env = "hanging_tasks:Hanging-v0"
kwargs = {{ where = "reset" }}
[schedule]
kind = "is"
reset_timeout_s = 600.0
"""


def settings(how, where, **schedule):
    limits = {"reset_timeout_s": LIMIT_S, "step_timeout_s": LIMIT_S}
    return load_settings(
        {
            "run": {"python_path": [str(HERE)]},
            "task": {"env": "hanging_tasks:Hanging-v0", "kwargs": {"how": how, "where": where}},
            "schedule": {"kind": "is", **limits, **schedule},
        }
    )


def checked(folder, monkeypatch, how, where):
    """The error that a check ends with, and for how long it hung."""
    mark = folder / "began"
    monkeypatch.setenv("HANG_MARK", str(mark))
    if where == "import":
        monkeypatch.setenv("HANG_AT_IMPORT", how)

    async def main():
        with pytest.raises(Hung) as caught:
            await Supervisor(settings(how, where), run_dir=folder).check()
        return caught.value

    with leaks.nothing_left():
        error = on_loop(main)
        return error, time.monotonic() - float(mark.read_text())


@pytest.mark.long
@pytest.mark.parametrize(("how", "where"), [("hang locked", "reset"), ("sleep", "import")])
def test_a_hang_of_the_probe_is_told_with_its_stack(tmp_path, monkeypatch, how, where):
    error, hung_s = checked(tmp_path, monkeypatch, how, where)
    assert error.exit_code == 3
    assert f'task.env = "hanging_tasks:Hanging-v0" hangs in {where!r}, over its limit of 2 s' in str(error)
    assert "misbehaving/faults.py" in str(error)
    assert f'File "{HERE}/hanging_tasks.py"' in error.stack
    assert hung_s >= LEAST_S


@pytest.mark.slow
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("how", HANGING)
def test_every_hang_of_the_probe_ends_a_second_after_its_limit(tmp_path, monkeypatch, how, where):
    error, hung_s = checked(tmp_path, monkeypatch, how, where)
    assert f"hangs in {PLACES[where]!r}" in str(error)
    assert ("hanging_tasks.py" in error.stack) == (how not in WITHOUT_STACK)
    # A busy host gives everybody as much longer as it is busier.
    assert LEAST_S <= hung_s <= (LIMIT_S + LATER_S) * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.slow
def test_an_environment_that_does_not_close_holds_up_no_check(tmp_path):
    async def main():
        return await Supervisor(settings("sleep", "close"), run_dir=tmp_path).check()

    with leaks.nothing_left():
        assert on_loop(main).facts["task"]["env"] == "Hanging-v0"


@pytest.mark.long
@pytest.mark.parametrize(("number", "arguments"), [(signal.SIGTERM, []), (signal.SIGINT, ["--check"])])
def test_one_signal_stops_what_hangs_in_the_probe(tmp_path, monkeypatch, number, arguments):
    mark = tmp_path / "began"
    monkeypatch.setenv("HANG_MARK", str(mark))
    run = Command(tmp_path, TOML.format(here=HERE), "--no-progress", *arguments)
    try:
        wait_for(run, mark)
        run.signal(number)
        code, _, error = run.wait()
    finally:
        run.close()
    assert code == 128 + number
    assert error.splitlines()[-1].startswith(f"stopped ({number.name}) before the run had begun")
    assert not run.runs.exists()
    assert leaks.processes_after(5) == {}


def wait_for(run, file):
    """Until a file is there; fails when the command ends before."""
    deadline = time.monotonic() + 60.0
    while not (file.exists() and file.read_text()):
        assert not leaks.gone(run.pid, 0.02), run.wait()[2]
        assert time.monotonic() < deadline


@pytest.mark.long
def test_a_stop_that_is_requested_while_executors_start_is_told_in_the_log(live):
    async def body(run):
        await run.saw("run_start")
        run.supervisor.request_stop("SIGTERM")

    result, run = live(
        body,
        run={"python_path": [str(HERE)]},
        task={"env": "hanging_tasks:Hanging-v0", "kwargs": {"where": "make", "role": "executor"}},
        schedule={"reset_timeout_s": 600.0},
    )
    assert (result.reason, result.exit_code) == ("SIGTERM", 143)
    assert run.all("run_end")[-1]["exit_code"] == 143


def test_a_stop_that_is_requested_at_once_is_an_error_that_says_so(tmp_path):
    async def main():
        supervisor = Supervisor(settings("sleep", "reset", reset_timeout_s=600.0), run_dir=tmp_path)
        running = asyncio.ensure_future(supervisor.run())
        await asyncio.sleep(0)
        supervisor.request_stop("my own reason")
        with pytest.raises(StoppedEarly, match=r"stopped \(my own reason\) before the run had begun") as caught:
            await running
        return caught.value.exit_code

    with leaks.nothing_left():
        assert on_loop(main) == 3
