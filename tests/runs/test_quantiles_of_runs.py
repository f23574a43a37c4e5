"""Quantiles of actions, weights and gradients reach the log under every schedule, and learning goes on as without."""

import pytest
from live_runs import settings
from resume_tools import run_here

from mlxe_async.analysis.exporters.scalars import Scalars
from mlxe_async.analysis.report.story import Story

KINDS = {
    "serial": {"kind": "serial"},
    "istb": {"kind": "istb"},
    "is": {"kind": "is"},
    "ia": {"kind": "ia"},
    "oa": {"kind": "oa"},
    "is, together": {"kind": "is", "gradients": "executors"},
    "serial, together": {"kind": "serial", "gradients": "executors"},
    "oa, pushing": {"kind": "oa", "gradients": "executors"},
}
REPEATS = ("serial", "istb", "is", "is, together", "serial, together")
PPO = {"name": "ppo", "policy": [8], "value": [8], "minibatch": 32, "epochs": 2}
ROLLOUTS = {"envs_per_executor": 2, "rollout_steps": 16}


def run(folder, kind, every, **tables):
    chosen = {"algorithm": PPO, "stop": {"env_steps": 640}, "schedule": ROLLOUTS | KINDS[kind], **tables}
    return run_here(settings(**chosen, logs={"quantiles_every": every}), folder)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_told_and_change_nothing(kind, tmp_path):
    result, lines = run(tmp_path / "with", kind, 3)
    assert result.exit_code == 0
    told, has_actions = lines.all("quantiles"), kind != "oa, pushing"  # the learner has few of the rows there
    assert [line["updates"] for line in told] == [*range(3, result.updates + 1, 3)]
    published = {line["version"]: line["updates"] for line in lines.all("weights")}
    for line in told:
        assert published[line["version"]] == line["updates"]
        assert {"weights", "gradients", "weights/actor.0.weight"} <= set(line["values"])
        assert ("actions" in line["values"]) == has_actions
        assert line["counts"]["weights"] == sum(n for name, n in line["counts"].items() if name.startswith("weights/"))
        assert not has_actions or sum(line["shares"]["actions"]) == pytest.approx(1.0)
        for found in line["values"].values():
            assert [*found.values()] == sorted(found.values())
    if kind in REPEATS:
        without, others = run(tmp_path / "without", kind, 0)
        assert not others.all("quantiles")
        assert without.weights_hash == result.weights_hash
        rates = [[line["losses"] for line in one.all("phase", phase="learn")] for one in (lines, others)]
        assert rates[0] == rates[1]

    scalars, drawn = Scalars(), []
    for line in lines.lines:
        scalars.feed(line)
        if line["event"] == "quantiles":
            drawn += scalars.histograms(line)
    assert {one.name for one in drawn} >= {"quantiles/gradients", "quantiles/weights"}
    assert len(Story.of(lines.lines).quantiles["weights"]) == len(told)


@pytest.mark.long
def test_a_replay_memory_tells_them_too_with_numbers_as_actions(tmp_path):
    sac = {"name": "sac", "layers": [8], "start_rows": 64, "batch": 16}
    task = {"env": "Pendulum-v1", "max_episode_steps": 50}
    tables = {"algorithm": sac, "task": task, "stop": {"env_steps": 300}}
    hashes = set()
    for every in (0, 50):
        result, lines = run(tmp_path / str(every), "is", every, **tables)
        hashes.add(result.weights_hash)
    told = lines.all("quantiles")
    assert len(hashes) == 1
    assert told
    assert all(-2.0 <= line["values"]["actions"]["min"] <= line["values"]["actions"]["max"] <= 2.0 for line in told)
    assert all(line["counts"]["actions"] == 16 and not line["shares"] for line in told)


@pytest.mark.long
def test_a_table_has_no_gradients_which_is_said_once(tmp_path):
    tables = {"algorithm": {"name": "q_learning"}, "task": {"env": "FrozenLake-v1"}, "schedule": {"kind": "is"}}
    _, lines = run(tmp_path, "is", 5, **tables)
    (said,) = [one["message"] for one in lines.all("warning") if "logs.quantiles_every" in one["message"]]
    assert "leaves no gradients behind" in said
    assert all("gradients" not in line["values"] for line in lines.all("quantiles"))
