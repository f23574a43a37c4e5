"""Algorithms that learn from rollouts never learn from anything older than `max_policy_lag`, and each row once."""

import live_runs
import pytest


def fake(live, *, rollouts, kind, **schedule):
    return live(
        algorithm={},
        stop={"env_steps": rollouts * 16},
        schedule={
            "kind": kind,
            "executors": 2,
            "envs_per_executor": 2,
            "sync": "rollout",
            "rollout_steps": 8,
            **schedule,
        },
        memory={"block_rows": 8},
    )


@pytest.fixture
def live_fake(live, monkeypatch):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", {"name": "fake_rollouts:Fake"})
    return live


def learned(run):
    return run.all("phase", phase="learn")


def test_in_the_synchronous_schedule_the_lag_is_zero(live_fake):
    _, run = fake(live_fake, rollouts=60, kind="is")
    assert {(line["lag_min"], line["lag_max"]) for line in learned(run) if line["updates"]} == {(0, 0)}


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("ia", 10),
        *(pytest.param(*more, marks=pytest.mark.long) for more in (("serial", 10), ("is", 100))),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in (("serial", 100), ("is", 10), ("ia", 100))),
    ],
)
def test_no_rollout_is_left_behind_where_all_wait_however_few_rows_an_update_needs(live, kind, rows):
    chosen = {"name": "a2c", "rows_per_update": rows}
    schedule = {"kind": kind, "executors": 3, "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 8}
    _, run = live(algorithm=chosen, stop={"env_steps": 1500}, schedule=schedule)
    updates = [line for line in learned(run) if line["updates"]]
    assert {(line["lag_min"], line["lag_max"], line["dropped_rows"]) for line in updates} == {(0, 0, 0)}
    assert min(line["rows"] for line in updates) >= rows
    ledger, (end,) = run.all("ledger")[-1], run.all("run_end")
    assert ledger["backlog"] == ledger["lost"] == 0
    assert end["env_steps"] - sum(line["rows"] for line in updates) < rows


@pytest.mark.parametrize(
    ("bound", "rollouts"),
    [(4, 100), *(pytest.param(*long, marks=pytest.mark.slow) for long in ((4, 200), (0, 200), (1, 500), (2, 10_000)))],
)
def test_the_bound_of_the_asynchronous_schedule_holds(live_fake, bound, rollouts):
    _, run = fake(live_fake, rollouts=rollouts, kind="oa", max_policy_lag=bound)
    updates = [line for line in learned(run) if line["updates"]]
    assert len(updates) > 10
    assert max(line["lag_max"] for line in updates) <= bound
    assert max(line["losses"]["lag"] for line in updates) <= bound
    used = sum(line["rows"] for line in learned(run))
    dropped = sum(line["dropped_rows"] for line in learned(run))
    (end,) = run.all("run_end")
    waiting = run.all("ledger")[-1]
    assert used + dropped <= end["env_steps"]
    assert waiting["lost"] == 0


@pytest.mark.slow
def test_ppo_never_learns_from_anything_older_than_its_bound_over_ten_thousand_rollouts(live, monkeypatch):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", {"name": "ppo", "epochs": 1, "minibatch": 8})
    _, run = live(
        stop={"env_steps": 80_000},
        schedule={"kind": "oa", "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 4, "max_policy_lag": 3},
        memory={"block_rows": 8},
    )
    updates = [line for line in learned(run) if line["updates"]]
    assert len(run.all("phase", phase="generate")) >= 10_000
    assert max(line["lag_max"] for line in updates) <= 3
