"""What wrappers keep between episodes goes where the policy goes: to executors, tests, checkpoints, resumed runs."""

import json
import signal

import numpy as np
import pytest
from live_runs import EVALUATED, killing
from resume_tools import SAVING, interrupted, run_here, settings

from mlxe_async import load_policy
from mlxe_async.storage import checkpoints

SPANNING = {"executors": 2, "envs_per_executor": 2, "rollout_steps": 16}
PPO = {"name": "ppo", "epochs": 1, "minibatch": 32}
STOP = {"env_steps": 1200}


def stateful(note="", kind="is", **tables):
    wrapper = {"entry": "stateful_tasks:Counting", "kwargs": {"note": str(note)} if note else {}}
    table = {"env": "CartPole-v1", "wrappers": [wrapper], "max_episode_steps": 200}
    table |= tables.pop("task", {})
    schedule = {"kind": kind, **SPANNING, **tables.pop("schedule", {})}
    return {"task": table, "schedule": schedule, "algorithm": PPO, "stop": STOP, **tables}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(result, run) of a run that is not disturbed."""
    return run_here(settings(**stateful()), tmp_path_factory.mktemp("whole"))


def noted(note):
    return [json.loads(line) for line in note.read_text().splitlines()]


def saved(folder):
    """Facts of the checkpoints of a run, by version."""
    told = [
        checkpoints.load(folder / "checkpoints", number)[1] for number in checkpoints.numbers(folder / "checkpoints")
    ]
    return {facts["version"]: facts for facts in told}


@pytest.mark.long
def test_all_begin_their_episodes_with_what_the_first_environment_has_learned(live, tmp_path):
    note = tmp_path / "note"
    _, run = live(**stateful(note))
    told = noted(note)
    first, second = ([one for one in told if one["pid"] == run.pid(f"mlxe-exe-{index}")] for index in (0, 1))
    # The second executor has begun with some of what the first told at the end of its rollouts, and with nothing else.
    steps = SPANNING["rollout_steps"]
    known = {one["seen"] for one in second}
    assert len(known) > 5
    assert max(known) <= max(one["seen"] for one in first) + steps
    assert [one["seen"] for one in second] == sorted(one["seen"] for one in second)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_and_deaths_change_nothing(live, whole):
    disturbed, run = live(
        killing((3, "mlxe-exe-0"), (6, "mlxe-exe-1"), (9, "mlxe-lrn"), (12, "mlxe-exe-0")), **stateful()
    )
    assert len(run.all("proc_exit", expected=False)) >= 4
    assert not [line["message"] for line in run.all("warning") if "environment" in line["message"]]
    assert disturbed.weights_hash == whole[0].weights_hash


@pytest.mark.long
@pytest.mark.parametrize(
    "chance", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("sync", ["rollout", "episode"])
def test_a_run_that_was_killed_goes_on_to_the_same_end(tmp_path, whole, chance, sync):
    more = {} if sync == "rollout" else {"schedule": {"sync": "episode", "envs_per_executor": 1}}
    table = stateful(**more)
    if sync == "episode":
        del table["schedule"]["rollout_steps"]
    chosen = settings(**table, **SAVING)
    expected = whole[0] if sync == "rollout" else run_here(chosen, tmp_path / "whole")[0]
    for number in (signal.SIGKILL, signal.SIGINT):
        folder = interrupted(tmp_path / number.name, chosen, signal_number=number, chance=chance, events=90)
        result, _ = run_here(chosen, resume=folder)
        assert result.weights_hash == expected.weights_hash, number


@pytest.mark.long
def test_serial_comes_to_the_same(tmp_path, whole):
    result, _ = run_here(settings(**stateful(kind="serial")), tmp_path)
    assert result.weights_hash == whole[0].weights_hash


@pytest.mark.long
@pytest.mark.parametrize("kind", ["is", "oa"])
def test_a_version_is_tested_saved_and_played_with_what_was_known_by_it(live, tmp_path, kind):
    note = tmp_path / "note"
    result, run = live(**stateful(note, kind, evaluation=EVALUATED, **SAVING))
    tester = {line["pid"] for line in run.all("proc_start", process="mlxe-eval")}
    tested = [one["seen"] for one in noted(note) if one["pid"] in tester]
    assert len(set(tested)) > 2
    # All restarts of a test begin alike.
    each = EVALUATED["episodes"]
    assert all(len(set(tested[at : at + each])) == 1 for at in range(0, len(tested), each))
    policy = load_policy(result.run_dir, "last")
    seen = policy.wrapper_states["Counting"]["seen"]
    assert seen >= max(tested)
    before = len(noted(note))
    next(policy.play())
    assert [one["seen"] for one in noted(note)[before:]] == [seen]
    assert policy.test().return_mean == policy.test().return_mean


@pytest.mark.long
def test_under_is_a_test_knows_what_its_versions_checkpoint_says(live, tmp_path):
    note = tmp_path / "note"
    result, run = live(**stateful(note, evaluation=EVALUATED, checkpoint={**SAVING["checkpoint"], "keep": 99}))
    states = {version: facts["wrappers"] for version, facts in saved(result.run_dir).items()}
    tester = {line["pid"] for line in run.all("proc_start", process="mlxe-eval")}
    tested = [one["seen"] for one in noted(note) if one["pid"] in tester][:: EVALUATED["episodes"]]
    versions = [line["version"] for line in run.all("evaluation")]
    both = [
        (seen, json.loads(states[version])["Counting"]["dict"]["seen"])
        for version, seen in zip(versions, tested, strict=True)
        if states.get(version)
    ]
    assert len(both) > 2
    assert all(seen == known for seen, known in both), both


@pytest.mark.long
def test_where_no_process_waits_a_resumed_run_knows_what_it_knew(tmp_path):
    note = tmp_path / "note"
    chosen = settings(**stateful(note, "oa"), **SAVING)
    folder = interrupted(tmp_path / "command", chosen, chance=1, events=60)
    # Of the last whole checkpoint, from which it goes on.
    state = checkpoints.load_whole(folder / "checkpoints").facts["state"]["lessons"]["wrappers"]["told"]
    known = json.loads(state)["Counting"]["dict"]["seen"]
    before = len(noted(note))
    run_here(chosen, resume=folder)
    # Those of its probe know nothing.
    begun = [one["seen"] for one in noted(note)[before:] if one["seen"]]
    assert known > 0
    assert min(begun[3:]) >= known


@pytest.mark.long
def test_a_replaced_executor_of_a_run_that_waits_for_none_goes_on_from_what_was_published(live, tmp_path):
    note = tmp_path / "note"
    _, run = live(killing((5, "mlxe-exe-0")), **stateful(note, "oa"))
    pids = [line["pid"] for line in run.all("proc_start", process="mlxe-exe-0")]
    seen = {pid: [one["seen"] for one in noted(note) if one["pid"] == pid] for pid in pids}
    old, new = (seen[pid] for pid in pids)
    assert 0 < new[0] <= max(old) + 3 * SPANNING["rollout_steps"]


@pytest.mark.long
def test_gymnasiums_statistics_are_kept_published_and_frozen_in_tests(live):
    wrapper = "gymnasium.wrappers:NormalizeObservation"
    table = {"env": "Pendulum-v1", "wrappers": [wrapper], "max_episode_steps": 50}
    algorithm = {"name": "sac", "start_rows": 64, "batch": 16, "layers": [8]}
    result, _ = live(**{**stateful(), "task": table, "algorithm": algorithm, "stop": {"env_steps": 400}})
    policy = load_policy(result.run_dir, "last")
    state = policy.wrapper_states["NormalizeObservation"]
    assert state["count"] > 50
    assert np.all(state["var"] < 64)
    again, _ = live(**{**stateful(), "task": table, "algorithm": algorithm, "stop": {"env_steps": 400}})
    assert again.weights_hash == result.weights_hash
