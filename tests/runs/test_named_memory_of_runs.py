"""Simulators that name shared memory leave none, however a run or one of its processes ends."""

import os
import signal
import time
import uuid
from pathlib import Path

import pytest
from command import LIMIT_S
from leaks import processes
from naming_world import PLACE

pytestmark = pytest.mark.long

PREFIX = f"mlxe-test-{uuid.uuid4().hex}-"  # tests run beside each other
TOML = f"""
[run]
python_path = ["{Path(__file__).parent}"]
[stop]
env_steps = 100000000
[task]
env = "naming_world:Naming-v0"
kwargs = {{ prefix = "{PREFIX}" }}
[schedule]
kind = "is"
executors = 2
envs_per_executor = 1
rollout_steps = 32
sync = "rollout"
[algorithm]
name = "ppo"
policy = [8]
value = [8]
"""


def names():
    return {path.name for path in PLACE.iterdir() if path.name.startswith(PREFIX)}


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, names()
        time.sleep(0.02)


def pid_of(name):
    return next(pid for pid, found in processes().items() if found == name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_run_that_is_ended_leaves_no_names(command, number):
    run = command(TOML)
    run.saw("weights", times=3)
    assert len(names()) == 2
    run.signal(number)
    run.wait()
    until(lambda: not names())


@pytest.mark.parametrize("killed", ["mlxe-exe-0", "mlxe-nursery"])
def test_a_process_that_is_killed_leaves_no_names(command, killed):
    run = command(TOML)
    run.saw("weights", times=3)
    before = names()
    os.kill(pid_of(killed), signal.SIGKILL)
    lost = 1 if killed == "mlxe-exe-0" else 2
    until(lambda: len(names()) == 2 and len(names() & before) == 2 - lost)
    run.signal(signal.SIGINT)
    run.wait()
    until(lambda: not names())
