"""The moving average of returns is that of each episode before, over all executors, in the order of the log."""

import json

import pytest

from mlxe_async.logs.journal import Journal
from mlxe_async.supervisor.plan.budget import Bell, Budget, Counters
from mlxe_async.supervisor.plan.event_log import EventLog


def delivered(log, index, returns):
    count = len(returns)
    ended = {"return": returns, "steps": [1] * count, "terminated": [True] * count, "seed": [1] * count}
    ended |= {"env": [0] * count, "episode": list(range(count))}
    report = {"lane_wait_s": 0.0, "start_ns": 0, "seconds": 0.1, "version": 1, "rows": count, "action_changes": None}
    log.generated(index, report | {"episodes": ended})


def test_each_episode_tells_the_average_after_it_and_one_without_a_return_changes_nothing(tmp_path):
    counters = Counters()
    with Journal(tmp_path / "log.jsonl", "x") as journal:
        log = EventLog(journal, counters, Budget({}, counters, Bell()))
        delivered(log, 0, [float("nan"), 100.0, 200.0])
        delivered(log, 1, [float("inf"), 0.0])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    found = [line["average"] for line in lines if line["event"] == "episode_end"]
    assert found == [None, 100.0, pytest.approx(101.0), pytest.approx(101.0), pytest.approx(99.99)]
