"""However the supervisor ends, nothing is left: no child, no grandchild, wherever it has drifted to."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import leaks
import pytest

HERE = Path(__file__).parent


def supervisor(moment="running"):
    """A supervisor in a process of its own, and the pids below it."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    run = subprocess.Popen([sys.executable, HERE / "victim.py", HERE, moment], stdout=subprocess.PIPE, env=environment)
    return run, json.loads(run.stdout.readline())


def end(run, number):
    run.send_signal(number)
    run.wait()
    run.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT], ids=lambda n: n.name)
def test_everything_below_a_dead_supervisor_dies(number):
    run, pids = supervisor()
    assert len(pids) == 9
    assert not any(leaks.gone(pid, 0) for pid in pids)
    end(run, number)
    assert [pid for pid in pids if not leaks.gone(pid, 5)] == []
    assert leaks.processes_after(5) == {}


def test_a_nursery_in_the_middle_of_an_import_dies_with_its_supervisor():
    run, pids = supervisor("importing")
    end(run, signal.SIGKILL)
    assert all(leaks.gone(pid, 5) for pid in pids)


def test_a_stopped_child_dies_with_its_supervisor():
    run, pids = supervisor()
    for pid in pids[1:]:
        os.kill(pid, signal.SIGSTOP)
    end(run, signal.SIGKILL)
    assert all(leaks.gone(pid, 5) for pid in pids)


def test_the_children_die_even_when_nursery_and_supervisor_are_killed_together():
    run, (nursery, *pids) = supervisor()
    children = [pids[0], pids[4]]
    os.kill(nursery, signal.SIGSTOP)
    os.kill(nursery, signal.SIGKILL)
    end(run, signal.SIGKILL)
    assert all(leaks.gone(pid, 5) for pid in children)
    # What these had started has lost both its guardians.
    for pid in leaks.processes():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["running", "importing"])
def test_a_hundred_killed_supervisors_leave_nothing_after_a_second(moment):
    slowest = 0.0
    for _ in range(100):
        run, pids = supervisor(moment)
        begin = time.monotonic()
        end(run, signal.SIGKILL)
        assert all(leaks.gone(pid, 1.0 - (time.monotonic() - begin)) for pid in pids)
        slowest = max(slowest, time.monotonic() - begin)
    print(f"slowest clean-up after SIGKILL of the supervisor while {moment}: {slowest * 1e3:.0f} ms")
