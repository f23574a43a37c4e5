"""However the command ends, nothing is left: no process, no memory, no descriptor, no file half written."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from command import Command, left_after

OA = """
[stop]
env_steps = 10_000_000
[task]
env = "CartPole-v1"
[schedule]
kind = "oa"
executors = 2
[evaluation]
enabled = false
[algorithm]
name = "mlxe"
min_updates = 4
"""


@pytest.fixture
def command(tmp_path):
    started = []

    def start(toml=OA, *arguments):
        folder = tmp_path / str(len(started))  # `latest` must never be the run of another
        folder.mkdir()
        started.append(Command(folder, toml, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)],
)
def test_a_signal_stops_the_run_saves_the_weights_and_gives_its_exit_code(command, number, code):
    run = command()
    run.saw("weights", times=3)
    run.signal(number)
    exit_code, _, error = run.wait()
    lines = run.lines()
    assert exit_code == code
    assert "Traceback" not in error
    assert [line for line in lines if line["event"] == "checkpoint"]
    end = lines[-1]
    assert (end["event"], end["reason"], end["exit_code"]) == ("run_end", number.name, code)
    assert left_after(1.0) == {}


def memory_of(pids):
    """Our shared memory that these processes hold, by device and inode: what other runs on this host hold is theirs."""
    held = set()
    for pid in pids:
        try:
            entries = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:  # it ended after its number was read
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                if "memfd:mlxe-" in str(entry.readlink()):
                    status = entry.stat()
                    held.add((status.st_dev, status.st_ino))
    return held


def killed_at_a_random_moment(command, seed):
    """Whether it held shared memory when it was killed."""
    chance = random.Random(seed)  # noqa: S311 - chooses moments, guards no secret
    run = command()
    if chance.random() < 0.75:
        run.saw(chance.choice(["run_start", "proc_start", "weights"]))
    pause = time.monotonic() + chance.random() * 0.5
    while time.monotonic() < pause and run.process.poll() is None:
        os.sched_yield()
    memory = memory_of([run.pid])
    run.signal(signal.SIGKILL)
    run.process.wait()
    deadline = time.monotonic() + 1.0
    left = left_after(1.0)
    assert left == {}, f"seed {seed}: {left}"
    # A process that ends loses its environment, by which it is known here, a moment before its descriptors.
    while held := memory & memory_of(entry.name for entry in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, f"seed {seed}: {held}"
        os.sched_yield()
    return bool(memory)


@pytest.mark.parametrize("seed", range(2))
def test_after_the_supervisor_is_killed_nothing_is_left_within_a_second(command, seed):
    killed_at_a_random_moment(command, seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", [1, 2, 3])
def test_after_the_supervisor_is_killed_nothing_is_left_three_hundred_times(command, hundred):
    held = [killed_at_a_random_moment(command, seed) for seed in range(100 * hundred, 100 * hundred + 100)]
    assert sum(held) >= 50  # the others were killed while they were being started


def test_the_exit_code_of_a_finished_run_is_0_and_the_last_line_says_how_it_ended(command):
    run = command(OA, "--set", "stop.env_steps=500", "--no-progress")
    exit_code, out, error = run.wait()
    assert (exit_code, out) == (0, "")
    assert error.splitlines()[-1].startswith("finished (env_steps) after ")


@pytest.mark.slow
def test_a_run_whose_lines_nobody_reads_stops_where_the_settings_say_so(command):
    run = command(OA, "--set", 'supervision.on_stdout_closed="stop"', "--set", "stop.env_steps=1_000_000")
    run.saw("weights")
    run.process.stderr.close()
    assert run.process.wait(60) == 0
    assert run.lines()[-1]["reason"] == "output_closed"
