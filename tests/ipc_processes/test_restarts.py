"""When a process is started again and when it counts as hung, decided without any process."""

import pytest

from mlxe_async.ipc.restarts import FORGIVEN_LIMIT_S, HangJudge, RestartBudget, RestartPolicy

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
        scheduling = (int(self.run_s * 1e9), int(self.wait_s * 1e9))
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
