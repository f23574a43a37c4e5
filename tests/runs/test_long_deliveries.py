"""A delivery may be larger than the lane it goes through: where one thread does all, it reads as it goes."""

import pytest

SMALL_LANE = {"block_rows": 8, "lane_slots": 2}
MANY = {"executors": 2, "envs_per_executor": 4, "sync": "rollout", "rollout_steps": 32}
CASES = {
    "rollouts": {
        "algorithm": {"name": "ppo", "epochs": 2, "policy": [16], "value": [16]},
        "schedule": MANY,
    },
    "whole episodes": {
        "algorithm": {"name": "reinforce", "rows_per_update": 60, "policy": [16]},
        "schedule": {"executors": 2},
    },
    "replay": {
        "algorithm": {"name": "dqn", "prioritised": True, "start_rows": 64, "batch": 16, "layers": [16]},
        "schedule": MANY,
    },
    "replay of episodes": {
        "algorithm": {"name": "mlxe", "priorities": ["age", "td"], "min_updates": 4, "batch": 32},
        "schedule": {"executors": 2},
    },
}


def told(run):
    return [(line["version"], line["updates"], line["norm"]) for line in run.all("weights")]


@pytest.mark.long
@pytest.mark.parametrize(
    "case", ["replay", *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != "replay")]
)
def test_serial_reads_what_its_lane_cannot_hold_and_learns_the_same_as_is(live, case):
    tables = {"algorithm": CASES[case]["algorithm"], "stop": {"env_steps": 1100}}
    kinds = {kind: {"kind": kind, **CASES[case]["schedule"]} for kind in ("serial", "is")}
    small, first = live(schedule=kinds["serial"], memory=SMALL_LANE, **tables)
    together, second = live(schedule=kinds["is"], **tables)
    assert small.updates > 2
    assert (small.weights_hash, told(first)) == (together.weights_hash, told(second))
    ledgers = [run.all("ledger")[-1] for run in (first, second)]
    assert [(ledger["lost"], ledger["backlog"]) for ledger in ledgers] == [(0, 0)] * 2
    assert ledgers[0]["ingested"] == ledgers[1]["ingested"]
