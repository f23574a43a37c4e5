"""Which limit is named when the kernel makes no more processes."""

import resource
import select
import subprocess
import sys
from pathlib import Path

import pytest

from mlxe_async.ipc.processes.limits import ProcessLimits

UNIFIED, OWN = "0::/a/b", "8:pids:/a/b"
PIDS = Path("/sys/fs/cgroup/pids")


class Host:
    """A made-up host; groups are set up as `host.group("a/b", most, now, refusals)`."""

    def __init__(self, folder, line):
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(f"4:memory:/x\n{line}\n")
        self.root = self.cgroups / "pids" if line == OWN else self.cgroups
        self.root.mkdir(parents=True)

    def group(self, name, most, now, refusals=0):
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in (("pids.max", most), ("pids.current", now), ("pids.events", f"max {refusals}")):
            (folder / file).write_text(f"{value}\n")
        return folder

    def limits(self):
        return ProcessLimits(self.proc, self.cgroups)


@pytest.fixture(params=[UNIFIED, OWN], ids=["version 2", "version 1"])
def host(tmp_path, request):
    return Host(tmp_path, request.param)


@pytest.fixture(params=[7, resource.RLIM_INFINITY], ids=["ulimit -u 7", "no ulimit -u"])
def of_user(monkeypatch, request):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (request.param, request.param))
    return request.param


def test_a_control_group_that_is_full_is_named_whatever_the_user_may(host, of_user):
    host.group("a", "max", 30)
    folder = host.group("a/b", 20, 20)
    words = f"the control group {folder} may have 20 processes and threads (pids.max), and has 20: end some, or raise"
    assert host.limits().met().startswith(words)


def test_one_above_it_is_named_too(host, of_user):
    host.group("a/b", 20, 3)
    folder = host.group("a", 30, 31)
    assert f"the control group {folder} may have 30" in host.limits().met()


def test_one_that_has_refused_meanwhile_is_named_although_it_has_room_again(host, of_user):
    folder = host.group("a/b", 20, 20, refusals=4)
    limits = host.limits()
    host.group("a/b", 20, 18, refusals=5)
    assert f"{folder} may have 20 processes and threads (pids.max), and has 18" in limits.met()
    assert "control group /" not in limits.met()


@pytest.mark.parametrize("most", [20, "max", "nonsense"])
def test_otherwise_the_limit_of_the_user_is_named_if_there_is_one(host, of_user, most):
    host.group("a/b", most, 19, refusals=4)
    named = "this user may have 7 processes and threads (ulimit -u)" if of_user == 7 else "end some processes, or raise"
    assert host.limits().met().startswith(named)


def test_in_a_container_the_root_of_what_is_seen_counts(host, of_user):
    folder = host.group("", 20, 20)
    assert f"the control group {folder} may have 20" in host.limits().met()


def test_where_nothing_is_told_of_control_groups_the_limit_of_the_user_is_named(tmp_path, of_user):
    assert "control group /" not in ProcessLimits(tmp_path, tmp_path).met()


FULL = """
import os, sys
from mlxe_async.ipc.processes import linux
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
try:
    pid = os.fork()
except OSError as error:
    print(linux.refusal(error))
else:
    os._exit(0) if pid == 0 else os.waitpid(pid, 0)
"""


@pytest.fixture
def real_group():
    group = PIDS / "mlxe-test-limits"
    try:
        group.mkdir()
        (group / "pids.max").write_text("1")
    except OSError as error:
        pytest.skip(f"needs a control group for processes that may be written to: {error}")
    yield group
    deadline = select.poll()
    for _ in range(100):
        if not (group / "cgroup.procs").read_text():
            break
        deadline.poll(50)
    group.rmdir()


def test_a_real_control_group_is_named(real_group):
    done = subprocess.run([sys.executable, "-c", FULL, real_group], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Resource temporarily unavailable; the control group /sys/fs/cgroup/pids/")
    assert "may have 1 processes and threads (pids.max), and has 1: end some, or raise the limit" in done.stdout
