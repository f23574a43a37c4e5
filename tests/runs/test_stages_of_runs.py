"""Real runs through stages: they change between rounds, never in an episode, and alike after kills and resumptions."""

import json
import signal

import pytest
from live_runs import killing
from resume_tools import SAVING, interrupted, run_here, settings

SPANNING = {"executors": 2, "envs_per_executor": 2, "rollout_steps": 16}
PPO = {"name": "ppo", "epochs": 1, "minibatch": 32}
STAGES = [
    {"kwargs": {"size": 2}, "until_return": 1.2, "over_episodes": 20},
    {"kwargs": {"size": 4}, "until_steps": 300},
    {},
]
STOP = {"env_steps": 1200}
ITEMS = 7


@pytest.fixture
def data(tmp_path):
    """A file of items, and one that is told of each reset."""
    path, note = tmp_path / "items.jsonl", tmp_path / "note"
    path.write_text("".join(f'{{"level": {number}}}\n' for number in range(ITEMS)))
    return path, note


def staged(note="", kind="is", **task):
    kwargs = {"size": 9, "note": str(note)} if note else {"size": 9}
    table = {"env": "staged_tasks:Rows-v0", "kwargs": kwargs, "stages": STAGES, "max_episode_steps": 50, **task}
    return {"task": table, "schedule": {"kind": kind, **SPANNING}, "algorithm": PPO, "stop": STOP}


def stages_of(run):
    return [(line["stage"], line["env_steps"], line["episodes"], line["reason"]) for line in run.all("stage")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(result, run) of a run that is not disturbed."""
    return run_here(settings(**staged()), tmp_path_factory.mktemp("whole"))


def expected_first(run):
    """Steps and episodes at which the first stage is over, worked out of the log's own episodes by rounds."""
    rows, episodes, returns = 0, 0, []
    steps = SPANNING["executors"] * SPANNING["envs_per_executor"] * SPANNING["rollout_steps"]
    ended = {}
    for line in run.all("episode_end"):
        ended.setdefault(line["version"], {}).setdefault(line["idx"], []).append(line["episode_return"])
    for version in sorted(ended):
        rows += steps
        for index in sorted(ended[version]):
            returns += ended[version][index]
            episodes += len(ended[version][index])
        last = returns[-20:]
        if len(last) == 20 and sum(last) / 20 >= 1.2:
            return rows, episodes
    return None


@pytest.mark.long
def test_a_stage_is_over_exactly_when_the_logs_own_episodes_say_so(whole):
    _, run = whole
    (first, second) = stages_of(run)
    assert (first[0], second[0]) == (2, 3)
    assert first[1:3] == expected_first(run)
    assert first[3].startswith("mean return 1.")
    # Rounds of 64 steps: the first boundary at which 300 steps have gone by.
    assert second[1] - first[1] == 320
    assert second[3] == "it has lasted for 320 steps, 300 were asked for"


@pytest.mark.long
def test_the_same_seed_gives_the_same_and_deaths_change_nothing(live, whole):
    disturbed, run = live(
        killing((3, "mlxe-exe-1"), (6, "mlxe-exe-0"), (9, "mlxe-lrn"), (12, "mlxe-exe-1")), **staged()
    )
    assert len(run.all("proc_exit", expected=False)) >= 4
    assert stages_of(run) == stages_of(whole[1])
    assert disturbed.weights_hash == whole[0].weights_hash


@pytest.mark.long
def test_episodes_are_of_one_stage_and_sizes_follow_each_other(live, tmp_path):
    note = tmp_path / "note"
    _, run = live(**staged(note))
    told = [json.loads(line) for line in note.read_text().splitlines()]
    executors = {run.pid(f"mlxe-exe-{index}") for index in (0, 1)}
    for pid in executors:
        sizes = [one["size"] for one in told if one["pid"] == pid]
        assert sizes == sorted(sizes), "it never goes back to an earlier stage"
        assert set(sizes) == {2, 4, 9}
    # An episode of stage 1 has at most 3 steps, whenever it ends: none was changed on its way.
    seeds = {one["seed"]: one["size"] for one in told if one["pid"] in executors}
    assert all(2 <= line["length"] <= 1 + seeds[line["seed"]] for line in run.all("episode_end"))


@pytest.mark.long
@pytest.mark.parametrize(
    "chance", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_run_that_was_killed_goes_on_in_the_right_stage_to_the_same_end(tmp_path, whole, chance):
    chosen = settings(**staged(), **SAVING)
    folder = interrupted(tmp_path / "command", chosen, chance=chance, events=120)
    result, run = run_here(chosen, resume=folder)
    assert result.weights_hash == whole[0].weights_hash
    assert stages_of(run) == stages_of(whole[1])[len(stages_of(whole[1])) - len(stages_of(run)) :]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_where_rollouts_are_episodes_it_goes_on_alike_too(tmp_path, data, number):
    episodes = {"schedule": {"kind": "is", "executors": 2, "sync": "episode"}, "stop": {"env_steps": 900}}
    chosen = settings(**{**staged(reset_options=str(data[0])), **episodes, **SAVING})
    whole, told = run_here(chosen, tmp_path / "whole")
    folder = interrupted(tmp_path / "command", chosen, signal_number=number, chance=5, events=90)
    result, run = run_here(chosen, resume=folder)
    assert result.weights_hash == whole.weights_hash
    assert stages_of(run) == stages_of(told)[len(stages_of(told)) - len(stages_of(run)) :]


@pytest.mark.slow
def test_serial_goes_through_the_same_stages(tmp_path, whole):
    result, run = run_here(settings(**staged(kind="serial")), tmp_path)
    assert stages_of(run) == stages_of(whole[1])
    assert result.weights_hash == whole[0].weights_hash


@pytest.mark.long
def test_where_no_process_waits_a_stage_begins_with_the_next_episodes(live, tmp_path):
    note = tmp_path / "note"
    _, run = live(**staged(note, kind="oa"))
    assert [line["stage"] for line in run.all("stage")] == [2, 3]
    told = [json.loads(line) for line in note.read_text().splitlines()]
    seeds = {one["seed"]: one["size"] for one in told}
    assert all(2 <= line["length"] <= 1 + seeds[line["seed"]] for line in run.all("episode_end"))
    for index in (0, 1):
        sizes = [one["size"] for one in told if one["pid"] == run.pid(f"mlxe-exe-{index}")]
        assert sizes == sorted(sizes)


# -- items and levels --------------------------------------------------------------------------------------------------


def levels(note, run):
    """Levels of the episodes that executors began."""
    pids = {line["pid"] for line in run.all("proc_start") if line["process"].startswith(("mlxe-exe", "mlxe-ser"))}
    told = [json.loads(line) for line in note.read_text().splitlines()]
    return [one["options"]["level"] for one in told if one["pid"] in pids]


def itemised(data, kind="is", **task):
    path, note = data
    table = {"env": "staged_tasks:Rows-v0", "kwargs": {"size": 4, "note": str(note)}, "max_episode_steps": 50, **task}
    return {
        "task": {"reset_options": str(path), **table},
        "schedule": {"kind": kind, **SPANNING},
        "algorithm": PPO,
        "stop": {"env_steps": 640},
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", ["is", pytest.param("serial", marks=pytest.mark.slow), "oa"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_each_item_is_taken_once_in_a_pass_by_all_executors_together(live, data, kind, shuffled):
    _, run = live(**itemised(data, kind, shuffle_options=shuffled))
    taken = levels(data[1], run)
    counts = [taken.count(level) for level in range(ITEMS)]
    # Under way at the end are at most four episodes; under oa one executor may be ahead of the other.
    spread = 1 if kind != "oa" else 1 + len(taken) // ITEMS
    assert len(taken) > 3 * ITEMS
    assert max(counts) - min(counts) <= spread, counts
    if kind == "serial" and not shuffled:
        assert taken[:2] == [0, 2]


@pytest.mark.long
def test_an_executor_that_is_killed_takes_the_same_items_again(live, data):
    whole, _ = live(**itemised(data))
    disturbed, run = live(killing((3, "mlxe-exe-1"), (5, "mlxe-exe-0")), **itemised(data))
    assert run.all("proc_exit", expected=False)
    assert disturbed.weights_hash == whole.weights_hash


@pytest.mark.long
def test_a_run_of_items_that_was_killed_goes_on_to_the_same_end(tmp_path, data):
    chosen = settings(**itemised(data, shuffle_options=True), **SAVING)
    whole, _ = run_here(chosen, tmp_path / "whole")
    folder = interrupted(tmp_path / "command", chosen, chance=3, events=60)
    result, _ = run_here(chosen, resume=folder)
    assert result.weights_hash == whole.weights_hash


@pytest.mark.long
def test_levels_of_training_and_of_tests_are_apart(live, data):
    tested = {"enabled": True, "rule": "mean_return", "threshold": 99.0, "episodes": 3}
    chosen = itemised(data, seeds={"train": "5..9", "test": [100, 101]})
    del chosen["task"]["reset_options"]
    _, run = live(**chosen, evaluation=tested)
    told = [json.loads(line) for line in data[1].read_text().splitlines()]
    tester = {line["pid"] for line in run.all("proc_start", process="mlxe-eval")}
    executors = {line["pid"] for line in run.all("proc_start") if line["process"].startswith("mlxe-exe")}
    assert {one["seed"] for one in told if one["pid"] in tester} == {100, 101}
    assert {one["seed"] for one in told if one["pid"] in executors} == {5, 6, 7, 8, 9}
    assert {line["seed"] for line in run.all("episode_end")} <= {5, 6, 7, 8, 9}
    assert run.all("evaluation")
