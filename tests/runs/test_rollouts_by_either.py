"""Rollouts of so many steps or of the rest of an episode, as A3C has them, under each schedule."""

import pytest
from live_runs import killing_often

A2C = {"name": "a2c", "policy": [16], "value": [16]}
EITHER = {"executors": 2, "sync": "either", "rollout_steps": 12}


def run(live, body=None, steps=1500, **schedule):
    return live(
        body,
        algorithm=A2C,
        schedule={**EITHER, **schedule},
        stop={"env_steps": steps},
        memory={"block_rows": 8},
        supervision={"restart_limit": 1000, "restart_window_s": 1.0, "backoff_s": 0.01, "backoff_max_s": 0.01},
    )


def rollouts(lines):
    """Rows and finished episodes of each rollout."""
    return [(line["rows"], line["episodes"]) for line in lines.all("phase") if line["phase"] == "generate"]


@pytest.mark.long
@pytest.mark.parametrize("gradients", ["learner", "executors"])
def test_where_all_wait_runs_repeat_themselves_and_equal_the_serial_one(live, gradients):
    parallel, lines = run(live, kind="is", gradients=gradients)
    serial, others = run(live, kind="serial", gradients=gradients)
    assert parallel.weights_hash == serial.weights_hash
    assert sorted(rollouts(lines)) == sorted(rollouts(others))
    assert {episodes for _, episodes in rollouts(lines)} == {0, 1}
    assert {rows for rows, episodes in rollouts(lines) if not episodes} == {EITHER["rollout_steps"]}
    assert min(rows for rows, _ in rollouts(lines)) < EITHER["rollout_steps"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ia", "oa"])
def test_others_learn_from_rollouts_of_unequal_lengths(live, kind):
    schedule = {"kind": kind, "gradients": "executors"} if kind == "oa" else {"kind": kind}
    result, lines = run(live, steps=2500, **schedule)
    told = rollouts(lines)
    assert max(rows for rows, _ in told) <= EITHER["rollout_steps"]
    assert sum(rows for rows, _ in told) == result.steps
    assert sum(episodes for _, episodes in told) == result.episodes > 10
    assert result.updates > 50


@pytest.mark.parametrize("steps", [1, *(pytest.param(more, marks=pytest.mark.long) for more in (2, 3))])
def test_as_many_rows_as_an_update_wants_are_gathered_however_short_the_rollouts(live, steps):
    wanted = {**A2C, "rows_per_update": 200}
    _, lines = live(
        algorithm=wanted, schedule={**EITHER, "kind": "is", "rollout_steps": steps}, stop={"env_steps": 700}
    )
    rows = [line["rows"] for line in lines.all("phase") if line["phase"] == "learn" and line["updates"]]
    assert len(rows) >= 2
    assert min(rows) >= 200


@pytest.mark.long
def test_killed_executors_change_no_weight_of_them(live):
    calm, _ = run(live, kind="is", steps=3000)
    hurt, lines = run(
        live, killing_often(lambda draw: f"mlxe-exe-{draw.integers(2)}", 2, 1, 0.05), kind="is", steps=3000
    )
    assert len([line for line in lines.all("proc_exit", expected=False) if line["signal"] == "SIGKILL"]) == 2
    assert (hurt.weights_hash, hurt.steps, hurt.episodes) == (calm.weights_hash, calm.steps, calm.episodes)
