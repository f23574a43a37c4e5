"""Threads of torch stay awake between operations while cores are free, and sleep soon while others want them."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from mlxe_async.waits import BUSY, CALM, LEAST_NS, LOOK_S, SPINS, Pools, Waits, ready_here, variables


class Crowd:
    def __init__(self):
        self.is_here = False

    def gather(self):
        assert not self.is_here
        self.is_here = True

    def dismiss(self):
        assert self.is_here
        self.is_here = False


class Machine:
    """Threads that run, and are without a core, for so long as they are told."""

    def __init__(self):
        self.now, self.ran, self.waited, self.crowd = 0.0, 0, 0, Crowd()
        self.waits = Waits(self.crowd, lambda: (self.ran, self.waited), lambda: self.now)

    def go_on(self, share, *, seconds=LOOK_S, ready_ns=4 * LEAST_NS):
        """A time passes of which the threads were without a core for this share; returns whether they sleep soon."""
        self.now += seconds
        self.waited += round(share * ready_ns)
        self.ran += ready_ns - round(share * ready_ns)
        self.waits.look()
        return self.crowd.is_here


def test_threads_sleep_soon_once_cores_are_short_and_stay_awake_once_they_are_free():
    machine = Machine()
    assert not machine.go_on(0.0)
    assert not machine.go_on(BUSY)
    assert machine.go_on(BUSY + 0.01)
    assert machine.go_on(BUSY + 0.5)
    assert machine.go_on(CALM)  # in between it stays as it is
    assert not machine.go_on(CALM - 0.01)
    assert not machine.go_on(CALM)
    assert machine.waits.are_short is False


def test_looks_are_rare_and_each_is_at_the_time_since_the_one_before():
    machine = Machine()
    assert not machine.go_on(1.0, seconds=LOOK_S / 4)
    assert not machine.go_on(1.0, seconds=LOOK_S / 4)
    assert machine.go_on(0.0, seconds=LOOK_S / 2)  # two thirds of all
    assert not machine.go_on(0.0)


def test_threads_that_hardly_ran_say_nothing_until_they_have():
    machine = Machine()
    assert not machine.go_on(1.0, ready_ns=LEAST_NS // 2)
    assert machine.go_on(1.0, ready_ns=LEAST_NS // 2)


def test_the_time_of_threads_that_have_ended_is_not_taken_for_anything():
    machine = Machine()
    machine.go_on(0.0)
    machine.ran = 10
    machine.now += LOOK_S
    machine.waits.look()
    assert not machine.crowd.is_here
    assert machine.go_on(1.0)


def test_where_the_system_does_not_tell_threads_sleep_soon():
    crowd = Crowd()
    unknown = Waits(crowd, lambda: None)
    unknown.look()
    assert crowd.is_here
    assert unknown.are_short


def test_what_the_system_tells_is_summed_over_threads(tmp_path):
    assert ready_here(tmp_path / "none") is None
    for number, text in enumerate(("7 3 1", "100 20 5")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "schedstat").write_text(text)
    (tmp_path / "ended").mkdir()
    assert ready_here(tmp_path) == (107, 23)
    ran, _ = ready_here()
    sum(range(10**6))
    assert ready_here()[0] > ran


@pytest.mark.parametrize(("threads", "cores", "pools"), [(2, 1, 0), (2, 2, 1), (2, 3, 2), (4, 16, 5), (16, 16, 1)])
def test_there_are_more_threads_than_cores_and_no_pool_more_than_that_takes(threads, cores, pools):
    assert Pools(threads, cores)._count == pools
    assert threads + pools * (threads - 1) > cores >= threads + (pools - 1) * (threads - 1)


def test_pools_begin_once_and_leave_no_thread():
    before, pools = threading.active_count(), Pools(2, 3)
    pools.dismiss()
    for _ in range(2):
        pools.gather()
        pools.gather()
        assert threading.active_count() == before + 2
        pools.dismiss()
        assert threading.active_count() == before


def test_a_system_without_further_threads_goes_on_with_those_there_are(monkeypatch):
    before, begin, begun = threading.active_count(), threading.Thread.start, []

    def start(thread):
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    pools = Pools(2, 8)
    pools.gather()
    assert threading.active_count() == before + 2
    pools.dismiss()
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it is told, and ends its thread
def test_a_pool_that_fails_holds_nothing_up(monkeypatch):
    def failing(_numbers):
        raise MemoryError

    monkeypatch.setattr(torch, "zeros", failing)
    before, pools = threading.active_count(), Pools(2, 2)
    pools.gather()
    pools.dismiss()
    assert threading.active_count() == before


@pytest.mark.parametrize("said", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_how_threads_wait_is_left_to_the_user_who_has_said_it(said):
    assert variables({"PATH": "/bin", **said}) == ({} if said else {"GOMP_SPINCOUNT": SPINS})


@pytest.mark.parametrize(("threads", "spins", "are_watched"), [(2, SPINS, True), (1, SPINS, False), (2, "7", False)])
def test_threads_are_watched_where_there_are_several_and_the_user_has_not_said_how_they_wait(
    threads, spins, are_watched, monkeypatch
):
    monkeypatch.setenv("GOMP_SPINCOUNT", spins)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert (Waits.here() is not None) == are_watched


SLEEPS = """
import os, sys, time
from pathlib import Path
import torch
from mlxe_async.waits import Pools

def sleeps():
    texts = (one.read_text() for one in Path("/proc/self/task").glob("*/status"))
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)

def threads():
    return len([*Path("/proc/self/task").iterdir()])

torch.set_num_threads(2)
numbers = torch.zeros(1 << 17)
numbers.add_(1)
pools, alone = Pools(2, int(sys.argv[1])), threads()
pools.gather()
crowd, before = threads(), sleeps()
for _ in range(200):
    numbers.add_(1)
    ends = time.perf_counter() + 3e-5  # Python between two operations
    while time.perf_counter() < ends:
        pass
slept = sleeps() - before
pools.dismiss()
while threads() > alone:  # libgomp ends its own threads after ours; the process has 300 s
    os.sched_yield()
print(alone, crowd, slept, threads())
"""


@pytest.mark.long
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="threads on one core always sleep soon")
def test_a_crowd_has_torchs_threads_sleep_between_operations_and_leaves_none():
    cores = len(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", SLEEPS, str(cores)],
        env={**os.environ, "GOMP_SPINCOUNT": SPINS, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    alone, crowd, slept, left = map(int, done.stdout.split())
    assert slept >= 100  # in 200 operations; 0 where cores are free
    assert (crowd, left) == (alone + 2 * (cores - 1), alone)  # a thread of ours and one of libgomp's in each pool
