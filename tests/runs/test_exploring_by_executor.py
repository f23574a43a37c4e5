"""Executors that explore each in a way of its own, or not at all: `[schedule] temperature_by_executor` and others."""

import numpy as np
import pytest
from live_runs import killing_often

from mlxe_async.errors import SettingsError

ROLLOUTS = {"executors": 3, "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 16}
APART = {"temperature_by_executor": [0.5, 2.0], "exploit_only": 1}
PPO = {"name": "ppo", "policy": [16], "value": [16], "epochs": 2, "minibatch": 32, "anneal_steps": 5000}
A2C = {"name": "a2c", "policy": [16], "value": [16]}
DQN = {"name": "dqn", "layers": [16], "batch": 32, "start_rows": 64, "train_every": 8}
RESTARTS = {"restart_limit": 1000, "restart_window_s": 1.0, "backoff_s": 0.01, "backoff_max_s": 0.01}


def run(live, body=None, *, algorithm=PPO, steps=1000, stop=None, **schedule):
    tables = {"schedule": {**ROLLOUTS, **schedule}, "memory": {"block_rows": 8}, "supervision": RESTARTS}
    return live(body, algorithm=algorithm, stop=stop or {"env_steps": steps}, **tables)


def expect_greedy_ones_to_count_nowhere(result, lines, lanes):
    """Rows, steps and episodes are those of the executors that are learned from."""
    ledger = lines.all("ledger")[-1]
    assert [one["rows"] > 0 for one in ledger["lanes"]] == lanes
    assert ledger["committed"] == ledger["ingested"] + ledger["backlog"] == result.steps
    assert ledger["lost"] == 0
    ended, greedy = lines.all("episode_end"), lines.all("greedy_episode")
    assert {line["idx"] for line in ended} == {k for k, is_learned in enumerate(lanes) if is_learned}
    assert {line["idx"] for line in greedy} == {k for k, is_learned in enumerate(lanes) if not is_learned}
    assert result.episodes == len(ended)
    assert lines.all("warning") == []
    return greedy


@pytest.mark.long
@pytest.mark.parametrize("kind", ["serial", "istb", "is", "ia", "oa"])
def test_each_schedule_has_executors_that_differ(live, kind):
    result, lines = run(live, kind=kind, **APART)
    expect_greedy_ones_to_count_nowhere(result, lines, [True, True, False])
    assert result.reason == "env_steps"


@pytest.mark.long
def test_schedules_that_repeat_themselves_agree_and_greedy_executors_change_no_weight(live):
    hashes = {kind: run(live, kind=kind, **APART)[0].weights_hash for kind in ("is", "serial", "istb")}
    assert len(set(hashes.values())) == 1
    without = run(live, kind="is", executors=2, temperature_by_executor=[0.5, 2.0])[0].weights_hash
    assert hashes["is"] == without
    assert run(live, kind="is", executors=2)[0].weights_hash != without
    same = run(live, kind="is", executors=2, temperature_by_executor=[1.0, 1.0])[0].weights_hash
    assert same == run(live, kind="is", executors=2)[0].weights_hash


@pytest.mark.long
@pytest.mark.parametrize("process", ["mlxe-exe-1", pytest.param("mlxe-exe-2", marks=pytest.mark.slow)])
def test_an_executor_that_is_killed_changes_nothing_where_all_wait(live, process):
    calm, calm_lines = run(live, kind="is", steps=3000, **APART)
    hurt, lines = run(live, killing_often(lambda _draw: process, 2, 1, 0.03), kind="is", steps=3000, **APART)
    assert len([line for line in lines.all("proc_exit", expected=False) if line["signal"] == "SIGKILL"]) == 2
    assert (hurt.weights_hash, hurt.steps, hurt.episodes) == (calm.weights_hash, calm.steps, calm.episodes)
    for event in ("episode_end", "greedy_episode"):
        told = [
            sorted((line["idx"], line["env"], line["episode"], line["episode_return"]) for line in one.all(event))
            for one in (calm_lines, lines)
        ]
        assert told[0] == told[1]
    assert lines.all("greedy_episode")


@pytest.mark.long
def test_greedy_executors_make_no_gradients(live):
    schedule = {"gradients": "executors", "exploit_only": 1}
    found = [run(live, kind=kind, **schedule) for kind in ("is", "serial")]
    for result, lines in found:
        expect_greedy_ones_to_count_nowhere(result, lines, [True, True, False])
    assert found[0][0].weights_hash == found[1][0].weights_hash
    without = run(live, kind="is", executors=2, gradients="executors")[0]
    assert without.weights_hash == found[0][0].weights_hash


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [A2C, DQN], ids=["a2c", "dqn"])
def test_greedy_executors_push_nothing_and_keep_the_pace_of_the_others(live, algorithm):
    result, lines = run(live, algorithm=algorithm, kind="oa", gradients="executors", exploit_only=1)
    expect_greedy_ones_to_count_nowhere(result, lines, [True, True, False])
    account = lines.all("pushes")[-1]
    assert account["applied"] == result.updates > 5
    rollouts = [len(lines.all("phase", phase="generate", idx=index)) for index in range(3)]
    assert 0 < rollouts[2] <= max(rollouts[:2]) + 1


@pytest.mark.long
def test_epsilons_by_executor_are_acted_by(live):
    epsilons = {"epsilon_by_executor": [0.0, 1.0]}
    result, lines = run(live, algorithm=DQN, kind="is", steps=2000, exploit_only=1, **epsilons)
    expect_greedy_ones_to_count_nowhere(result, lines, [True, True, False])
    lengths = [np.mean([line["length"] for line in lines.all("episode_end", idx=index)]) for index in (0, 1)]
    assert 15 < lengths[1] < 35  # as of random actions
    assert lengths[0] < 13 or lengths[0] > 40 or abs(lengths[0] - lengths[1]) > 3  # as of one that follows its values


@pytest.mark.long
def test_a_run_that_goes_on_is_the_same_run(live, tmp_path):
    from resume_tools import run_here, settings

    tables = {"algorithm": PPO, "schedule": {**ROLLOUTS, "kind": "is", **APART}}
    whole, _ = run_here(settings(**tables, stop={"env_steps": 1200}), tmp_path / "whole")
    half, _ = run_here(settings(**tables, stop={"env_steps": 600}), tmp_path / "half")
    chosen = settings(**tables, stop={"env_steps": 1200})
    again, _ = run_here(chosen, tmp_path / "half", resume=half.run_dir)
    assert again.weights_hash == whole.weights_hash


@pytest.mark.parametrize(
    ("algorithm", "schedule", "said"),
    [
        (PPO, {"temperature_by_executor": [1.0, 2.0]}, "got 2 numbers, expected 3 with schedule.executors = 3"),
        (
            PPO,
            {"temperature_by_executor": [1.0, 1.0, 2.0], "exploit_only": 1},
            "got 3 numbers, expected 2 with schedule.executors = 3 and schedule.exploit_only = 1",
        ),
        (PPO, {"temperature_by_executor": [1.0, 0.0, 2.0]}, "expected"),
        (
            {**PPO, "max_kl": 0.1},
            {"temperature_by_executor": [1.0, 1.0, 2.0]},
            "algorithm.max_kl: got 0.1, expected 0 with schedule.temperature_by_executor = [1.0, 1.0, 2.0]: such rows",
        ),
        (DQN, {"epsilon_by_executor": [1.0, 1.1, 0.0]}, "expected"),
        (PPO, {"exploit_only": 3}, "expected at most 2 with schedule.executors = 3: nothing would be learned from"),
        (PPO, {"exploit_only": -1}, "expected"),
        (PPO, {"epsilon_by_executor": [0.1, 0.2, 0.3]}, "it has no epsilon: set schedule.temperature_by_executor"),
        (DQN, {"temperature_by_executor": [1, 2, 3]}, "it explores by an epsilon: set schedule.epsilon_by_executor"),
        (DQN | {"noisy": True}, {"temperature_by_executor": [1, 2, 3]}, "it explores by noise in its weights"),
        ({"name": "apex"}, {"epsilon_by_executor": [0.1, 0.2, 0.3]}, "it acts in a way of its own"),
        (A2C, {"temperature_by_executor": [1, 2, 3]}, "as if its present policy had made them"),
    ],
)
def test_what_does_not_fit_is_refused(live, algorithm, schedule, said):
    with pytest.raises(SettingsError) as refused:
        run(live, algorithm=algorithm, kind="is", **schedule)
    (line,) = refused.value.problems
    assert said in line
    assert "schedule." in line


@pytest.mark.long
def test_on_policy_algorithms_take_a_temperature_of_one(live):
    result, _ = run(live, algorithm=A2C, kind="is", steps=300, temperature_by_executor=[1, 1, 1])
    assert result.reason == "env_steps"
