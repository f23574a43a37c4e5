"""Rows of a real run: each says truly which policy chose its action, and how old it was when it was learned from."""

import numpy as np
import pytest

from mlxe_async.algorithms.mlxe import MLxE, MLxESettings
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.rows import Spaces


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("serial", "istb", "ia")), "is", "oa"]
)
def test_the_stored_log_probability_is_that_of_the_recorded_version(live, kind):
    published, rows = {}, {}

    async def watch(run):
        def hook(line):
            supervisor = run.supervisor
            if line["event"] == "weights":
                version, flat = supervisor._run.published()
                published[version] = flat
            if line["event"] == "run_end":
                memory = ReplayMemory(
                    supervisor._startup.blueprint.memory_shape, supervisor._startup.segments["memory"].buffer
                )
                rows.update(memory.columns(memory.live()))
                rows["spaces"] = supervisor._startup.facts["spaces"]

        run.hooks.append(hook)
        await run.saw("run_end")

    live(watch, schedule={"kind": kind, "executors": 2})
    policy = MLxE(MLxESettings(min_updates=4, batch=64), Spaces.from_json(rows["spaces"]), seed=0, learns=False)
    checked = 0
    for version in np.unique(rows["version"]):
        if int(version) not in published:
            continue
        mine = rows["version"] == version
        policy.load(published[int(version)])
        logits = policy.outputs(rows["obs"][mine], "policy")[0]
        bound = 1e-5 * np.maximum(1, np.abs(logits).max(axis=-1))
        error = np.abs(policy.behaviour_log_prob(rows["obs"][mine], rows["action"][mine]) - rows["log_prob"][mine])
        assert (error <= bound).all()
        checked += int(mine.sum())
    assert checked > 0.9 * len(rows["version"]) > 500


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("serial", "istb", "ia")), "is"]
)
def test_where_all_wait_every_rollout_is_generated_by_the_newest_version(live, kind):
    _, run = live(schedule={"kind": kind, "executors": 2})
    newest, checked = 0, 0
    for line in run.lines:
        if line["event"] == "weights":
            newest = line["version"]
        if line["event"] == "phase" and line["phase"] == "generate":
            assert line["version"] == newest
            checked += 1
    assert checked > 10


def test_policy_lag_is_told_in_the_asynchronous_schedule(live):
    _, run = live(schedule={"kind": "oa", "executors": 2})
    learned = run.all("phase", phase="learn")
    assert learned
    assert all(line["lag_min"] <= line["lag_mean"] <= line["lag_max"] for line in learned)
    assert any(line["lag_max"] > 0 for line in learned)
