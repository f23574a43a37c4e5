"""When a process is started again and when it counts as hung, decided without any process."""

import os
import subprocess
import sys
import time

import pytest

from mlxe_async.ipc.processes import linux
from mlxe_async.ipc.processes.linux import Scheduling
from mlxe_async.ipc.processes.restarts import (
    FORGIVEN_LIMIT_S,
    FORGIVEN_RUN_S,
    HangJudge,
    RestartBudget,
    RestartPolicy,
    is_late,
    starved,
)

TICK_S = 0.1


def waits(policy, times, name="mlxe-exe-0"):
    budget = RestartBudget(policy, name)
    return [budget.died(t) for t in times]


def test_the_wait_before_the_first_restart_is_at_most_the_backoff():
    assert all(0.05 <= waits(RestartPolicy(), [0.0], f"mlxe-exe-{i}")[0] <= 0.1 for i in range(100))


def test_waits_double_up_to_their_bound():
    policy = RestartPolicy(limit=10, backoff_s=0.1, backoff_max_s=1.0)
    longest = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits(policy, [0.0] * 6), longest, strict=True))


def test_waits_are_the_same_for_the_same_seed_and_name_and_differ_for_others():
    assert waits(RestartPolicy(), [0.0]) == waits(RestartPolicy(), [0.0])
    assert waits(RestartPolicy(), [0.0]) != waits(RestartPolicy(seed=1), [0.0])
    assert waits(RestartPolicy(), [0.0]) != waits(RestartPolicy(), [0.0], "mlxe-exe-1")


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_as_many_restarts_as_the_limit_and_one_death_more_is_final(limit):
    assert [wait is None for wait in waits(RestartPolicy(limit=limit), range(limit + 1))] == [False] * limit + [True]


def test_deaths_older_than_the_window_are_forgotten():
    policy = RestartPolicy(limit=1, window_s=10)
    assert None not in waits(policy, [0.0, 10.0, 20.0, 30.0])
    assert waits(policy, [0.0, 9.9])[1] is None


def test_progress_forgets_all_deaths():
    budget = RestartBudget(RestartPolicy(limit=1), "x")
    for _ in range(5):
        assert budget.died(0.0) is not None
        budget.progressed()
    assert budget.attempt == 0


def test_progress_does_not_forgive_a_process_that_hangs_in_each_life():
    budget = RestartBudget(RestartPolicy(limit=3, window_s=60.0), "x")
    for hangs in (1, 2, 3):
        budget.progressed()
        assert budget.died(100.0 * hangs, 5.0) is not None
        assert budget.hangs == hangs
    budget.progressed()
    assert budget.died(400.0, 59.9) is None


def test_hangs_count_although_their_limit_is_longer_than_the_window():
    budget = RestartBudget(RestartPolicy(limit=3, window_s=60.0), "x")
    assert [budget.died(70.0 * life, 0.0) is None for life in range(4)] == [False, False, False, True]


def test_a_life_that_goes_well_for_the_window_forgives_earlier_hangs():
    budget = RestartBudget(RestartPolicy(limit=2, window_s=60.0), "x")
    for life in range(20):
        budget.progressed()
        assert budget.died(100.0 * life, 60.0 if life % 2 else 1.0) is not None


def test_a_life_that_progresses_and_ends_in_another_way_forgives_earlier_hangs():
    budget = RestartBudget(RestartPolicy(limit=2, window_s=60.0), "x")
    for life in range(20):
        budget.progressed()
        assert budget.died(100.0 * life, None if life % 3 == 2 else 1.0) is not None
    budget = RestartBudget(RestartPolicy(limit=2, window_s=60.0), "x")
    hung_and_died = [1.0, None, 1.0, None, 1.0]
    assert [budget.died(100.0 * life, well_s) is None for life, well_s in enumerate(hung_and_died)][-1]


class Worker:
    """A worker inside one endless call of limit 1 s, looked at every tick."""

    def __init__(self, run_share=0.0, wait_share=0.0):
        self.judge = HangJudge(TICK_S)
        self.shares = run_share, wait_share
        self.now_s = self.run_s = self.wait_s = 0.0

    def pass_time(self, seconds):
        self.now_s += seconds
        self.run_s += seconds * self.shares[0]
        self.wait_s += seconds * self.shares[1]
        late = self.now_s - 1.0
        scheduling = Scheduling(int(self.run_s * 1e9), int(self.wait_s * 1e9), sum(self.shares) > 0)
        return self.judge.judge(int(self.now_s * 1e9), late if late > 0 else None, scheduling)

    def judged_at(self, until_s):
        while self.now_s < until_s:
            if self.pass_time(TICK_S) is not None:
                return self.now_s
        return None


@pytest.mark.parametrize(
    "worker", [Worker(), Worker(run_share=1.0), Worker(run_share=0.5, wait_share=0.5)], ids=["asleep", "busy", "half"]
)
def test_a_hang_is_judged_within_half_a_second_of_its_limit(worker):
    assert 1.0 < worker.judged_at(10.0) < 1.5


def test_a_worker_that_is_not_overdue_is_never_judged():
    judge = HangJudge(TICK_S)
    assert all(judge.judge(t * 10**9, None, None) is None for t in range(1000))


def test_a_worker_that_gets_no_core_is_forgiven_but_not_for_ever():
    at = Worker(run_share=0.05, wait_share=0.95).judged_at(200.0)
    assert FORGIVEN_LIMIT_S < at < FORGIVEN_LIMIT_S + 2.0


def test_a_worker_that_gets_next_to_no_core_is_forgiven_until_it_has_had_some():
    worker = Worker(run_share=0.01, wait_share=0.99)
    assert FORGIVEN_RUN_S / 0.01 < worker.judged_at(300.0) < FORGIVEN_RUN_S / 0.01 + 2.0


def test_a_wait_that_is_not_over_and_so_in_no_count_is_forgiven():
    """Of 256 that want its core, each has a turn every second or two: at most looks, nothing seems to have changed."""
    worker = Worker()
    worker.shares = 1e-12, 0.0
    for turn in range(1, 100):
        for _ in range(20):
            assert worker.pass_time(TICK_S) is None
        worker.run_s += 0.004
        worker.wait_s = turn * 2.0


def test_a_worker_that_was_short_of_time_is_judged_after_a_fair_second():
    worker = Worker(run_share=0.05, wait_share=0.95)
    assert worker.judged_at(5.0) is None
    worker.shares = 0.5, 0.5
    assert 6.0 < worker.judged_at(10.0) < 6.5


def test_a_pause_of_the_judge_itself_is_forgiven_once():
    worker = Worker()
    worker.pass_time(0.5)
    assert worker.pass_time(30.0) is None
    assert worker.now_s < worker.judged_at(100.0) < 33.0


def test_a_process_that_vanished_is_judged_by_the_page_alone():
    judge = HangJudge(TICK_S)
    assert judge.judge(10**9, 0.5, None) == 0.5


BEGAN = Scheduling(0, 0, ready=False)


@pytest.mark.parametrize(
    ("run_s", "wait_s", "ready", "short"),
    [
        (0.0, 0.0, False, False),  # asleep, or stopped
        (0.0, 0.0, True, True),  # it waits, and the kernel has not counted that yet
        (0.004, 0.0, True, True),
        (1.0, 0.0, True, False),
        (0.5, 0.5, True, False),
        (0.1, 0.9, False, True),
        (0.1, 0.1, False, False),  # asleep for most of the time
        (4.0, 3.0, True, False),  # several threads
    ],
)
def test_who_is_starved(run_s, wait_s, ready, short):
    now = Scheduling(round(run_s * 1e9), round(wait_s * 1e9), ready)
    assert starved(BEGAN, now, 1.0) is short


def test_late_is_who_could_have_answered():
    assert is_late(BEGAN, Scheduling(0, 0, ready=False), 10.0), "asleep"
    assert is_late(BEGAN, Scheduling(9 * 10**9, 0, ready=True), 10.0), "busy"
    assert not is_late(BEGAN, Scheduling(10**9, 0, ready=True), 10.0), "waiting for a core"
    assert is_late(BEGAN, Scheduling(2 * 10**9, 10**12, ready=True), 10.0), "had a fifth of it on a core"
    assert is_late(BEGAN, Scheduling(10**6, 10**9, ready=False), 10.0), "waited a little, then slept"
    assert not is_late(BEGAN, Scheduling(10**6, 9 * 10**9, ready=False), 10.0), "waited, and sleeps just now"
    assert is_late(None, BEGAN, 10.0), "gone"
    assert is_late(BEGAN, None, 10.0), "gone"


def on_core_0_forever(policy):
    code = f"import os\nos.sched_setscheduler(0, {policy}, os.sched_param(0))\nprint(flush=True)\nwhile True: pass"
    core = {min(os.sched_getaffinity(0))}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, core)
    )
    process.stdout.readline()
    return process


def test_the_kernel_tells_who_is_starved():
    with on_core_0_forever(os.SCHED_IDLE) as last, on_core_0_forever(os.SCHED_OTHER) as first:
        try:
            pids, began, deadline = (last.pid, first.pid), time.monotonic(), time.monotonic() + 60
            before = [linux.scheduling(pid) for pid in pids]
            while linux.scheduling(first.pid).run_ns < before[1].run_ns + 5e8 and time.monotonic() < deadline:
                pass
            now, passed_s = [linux.scheduling(pid) for pid in pids], time.monotonic() - began
            assert now[0].ready
            assert now[1].ready
            assert starved(before[0], now[0], passed_s)
            assert now[1].run_ns >= before[1].run_ns + 5e8
        finally:
            last.kill(), first.kill()
    assert linux.scheduling(last.pid) is None
