"""Rows of a real run: each says truly which policy chose its action, and how old it was when it was learned from."""

import functools

import numpy as np
import pytest
from live_runs import LiveRun, on_loop, settings

from mlxe_async.algorithms.mlxe.paper import MLxE, MLxESettings
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.rows import Spaces

SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("serial", "istb", "ia")]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """`played(kind)`: the lines of a run under that schedule, what it published, and the rows it kept; made once."""

    @functools.cache
    def play(kind):
        published, rows = {}, {}

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

        run = LiveRun(settings(schedule={"kind": kind, "executors": 2}), tmp_path_factory.mktemp(kind))
        run.hooks.append(hook)
        on_loop(run.supervisor.run)
        return run, published, rows

    return play


@pytest.mark.long
@pytest.mark.parametrize("kind", [*SLOW_KINDS, "is", "oa"])
def test_the_stored_log_probability_is_that_of_the_recorded_version(played, kind):
    _, published, rows = played(kind)
    policy = MLxE(MLxESettings(min_updates=4, batch=64), Spaces.from_json(rows["spaces"]), seed=0, learns=False)
    checked = 0
    for version in np.unique(rows["version"]):
        if int(version) not in published:
            continue
        mine = rows["version"] == version
        policy.load(published[int(version)])
        logits = policy.network.scores(rows["obs"][mine])
        bound = 1e-5 * np.maximum(1, np.abs(logits).max(axis=-1))
        error = np.abs(policy.policy(rows["obs"][mine]).log_prob(rows["action"][mine]) - rows["log_prob"][mine])
        assert (error <= bound).all()
        checked += int(mine.sum())
    assert checked > 0.9 * len(rows["version"]) > 500


@pytest.mark.parametrize("kind", [*SLOW_KINDS, "is"])
def test_where_all_wait_every_rollout_is_generated_by_the_newest_version(played, kind):
    run, _, _ = played(kind)
    newest, checked = 0, 0
    for line in run.lines:
        if line["event"] == "weights":
            newest = line["version"]
        if line["event"] == "phase" and line["phase"] == "generate":
            assert line["version"] == newest
            checked += 1
    assert checked > 10


@pytest.mark.long
def test_policy_lag_is_told_in_the_asynchronous_schedule(played):
    run, _, _ = played("oa")
    learned = run.all("phase", phase="learn")
    assert learned
    assert all(line["lag_min"] <= line["lag_mean"] <= line["lag_max"] for line in learned)
    assert any(line["lag_max"] > 0 for line in learned)
