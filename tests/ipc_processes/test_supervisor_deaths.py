"""However the supervisor ends, nothing is left: no child, no grandchild, wherever it has drifted to."""

import contextlib
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
    assert len(pids) == 10
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
    for pid in pids[2:]:
        os.kill(pid, signal.SIGSTOP)
    end(run, signal.SIGKILL)
    assert all(leaks.gone(pid, 5) for pid in pids)


@pytest.mark.parametrize(
    "stopped",
    [pytest.param([0], marks=pytest.mark.long), pytest.param([1], marks=pytest.mark.long), [0, 1]],
    ids=["nursery", "guard", "both"],
)
def test_who_is_stopped_ends_with_the_supervisor_and_takes_all_along(stopped):
    run, pids = supervisor()
    for which in stopped:
        os.kill(pids[which], signal.SIGSTOP)
    end(run, signal.SIGKILL)
    assert [pid for pid in pids if not leaks.gone(pid, 5)] == []
    assert leaks.processes_after(5) == {}


@pytest.mark.parametrize("moment", ["running", "weak"])
@pytest.mark.parametrize("guard", ["left alone", "stopped"])
def test_nothing_outlives_supervisor_nursery_and_children_that_are_killed_in_one_moment(moment, guard):
    run, (nursery, guard_pid, *pids) = supervisor(moment)
    if guard == "stopped":
        os.kill(guard_pid, signal.SIGSTOP)
    at_once = [run.pid, nursery, pids[0], pids[4]]
    for pid in at_once:
        os.kill(pid, signal.SIGSTOP)
    for pid in at_once:
        with contextlib.suppress(ProcessLookupError):  # the first death may have taken it along already
            os.kill(pid, signal.SIGKILL)
    end(run, signal.SIGKILL)
    assert [pid for pid in (nursery, guard_pid, *pids) if not leaks.gone(pid, 5)] == []
    assert leaks.processes_after(5) == {}


def test_without_a_guard_the_nursery_takes_all_along():
    run, (nursery, guard_pid, *pids) = supervisor()
    at_once = [run.pid, guard_pid]
    for pid in at_once:
        os.kill(pid, signal.SIGSTOP)
    for pid in at_once:
        with contextlib.suppress(ProcessLookupError):  # the first death may have taken it along already
            os.kill(pid, signal.SIGKILL)
    end(run, signal.SIGKILL)
    assert [pid for pid in (nursery, *pids) if not leaks.gone(pid, 5)] == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["running", "importing"])
def test_a_hundred_and_fifty_killed_supervisors_leave_nothing_after_a_second(moment, capsys):
    shared = Path("/dev/shm")  # noqa: S108 - only looked at
    named = set(shared.iterdir())
    times = []
    for _ in range(150):
        run, pids = supervisor(moment)
        begin = time.monotonic()
        end(run, signal.SIGKILL)
        # On a busy host all that is done takes as much longer as it is busier.
        within = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert all(leaks.gone(pid, within - (time.monotonic() - begin)) for pid in pids)
        times.append(time.monotonic() - begin)
    # What they shared has no names, so it went with the last of them.
    assert not {name for name in set(shared.iterdir()) - named if "mlxe" in name.name}
    late = sum(seconds > 1.0 for seconds in times)
    with capsys.disabled():
        print(
            f"\nclean-up after SIGKILL of the supervisor while {moment}: median {1e3 * sorted(times)[75]:.0f} ms, "
            f"slowest {1e3 * max(times):.0f} ms, {late} of {len(times)} later than 1 s"
        )
