"""Stages, items and state of wrappers where executors make the gradients, and where they die."""

import json
import signal

import pytest
from live_runs import killing
from resume_tools import SAVING, interrupted, run_here, settings
from test_stages_of_runs import ITEMS, PPO, SPANNING, STAGES, expected_first, stages_of

ALONE = {"name": "a2c", "policy": [16], "value": [16]}
STOP = {"env_steps": 1200}
COUNTING = {"entry": "stateful_tasks:Counting"}


def differentiated(kind="is", note="", stop=STOP, **task):
    kwargs = {"size": 9, "note": str(note)} if note else {"size": 9}
    table = {"env": "staged_tasks:Rows-v0", "kwargs": kwargs, "stages": STAGES, "max_episode_steps": 50, **task}
    schedule = {"kind": kind, **SPANNING, "gradients": "executors"}
    return {"task": table, "schedule": schedule, "algorithm": ALONE if kind == "oa" else PPO, "stop": stop}


@pytest.fixture
def items(tmp_path):
    """The path of a file of items."""
    path = tmp_path / "items.jsonl"
    path.write_text("".join(f'{{"level": {number}}}\n' for number in range(ITEMS)))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(result, run) of a run whose executors differentiate together, that is not disturbed."""
    chosen = settings(**differentiated(wrappers=[COUNTING]))
    return run_here(chosen, tmp_path_factory.mktemp("whole"))


@pytest.mark.long
def test_together_stages_are_over_when_the_logs_own_episodes_say_so(whole):
    _, run = whole
    assert [stage[0] for stage in stages_of(run)] == [2, 3]
    assert stages_of(run)[0][1:3] == expected_first(run)


@pytest.mark.long
def test_together_deaths_of_executors_and_workers_change_nothing(live, whole):
    turns = ((3, "mlxe-exe-1"), (6, "mlxe-exe-0"), (9, "mlxe-lrn"), (12, "mlxe-exe-0"))
    disturbed, run = live(killing(*turns), **differentiated(wrappers=[COUNTING]))
    assert len(run.all("proc_exit", expected=False)) >= len(turns)
    assert stages_of(run) == stages_of(whole[1])
    assert disturbed.weights_hash == whole[0].weights_hash


@pytest.mark.long
@pytest.mark.parametrize(
    "chance", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_together_a_killed_run_goes_on_in_its_stage_to_the_same_end(tmp_path, whole, chance):
    chosen = settings(**differentiated(wrappers=[COUNTING]), **SAVING)
    folder = interrupted(tmp_path / "command", chosen, chance=chance, events=120)
    result, run = run_here(chosen, resume=folder)
    assert result.weights_hash == whole[0].weights_hash
    assert stages_of(run) == stages_of(whole[1])[len(stages_of(whole[1])) - len(stages_of(run)) :]


@pytest.mark.long
def test_one_process_comes_to_the_same(tmp_path, whole):
    result, run = run_here(settings(**differentiated("serial", wrappers=[COUNTING])), tmp_path)
    assert stages_of(run) == stages_of(whole[1])
    assert result.weights_hash == whole[0].weights_hash


@pytest.mark.slow
@pytest.mark.parametrize("chance", range(3))
def test_one_process_that_was_killed_goes_on_to_the_same_end(tmp_path, items, chance):
    more = {"reset_options": str(items), "shuffle_options": True, "wrappers": [COUNTING]}
    chosen = settings(**differentiated("serial", **more), **SAVING)
    whole, told = run_here(chosen, tmp_path / "whole")
    folder = interrupted(tmp_path / "command", chosen, chance=chance, events=120)
    result, run = run_here(chosen, resume=folder)
    assert result.weights_hash == whole.weights_hash
    assert stages_of(run) == stages_of(told)[len(stages_of(told)) - len(stages_of(run)) :]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["is", "oa"])
def test_each_item_is_taken_once_in_a_pass(live, tmp_path, items, kind):
    note = tmp_path / "note"
    more = {"reset_options": str(items), "stages": [], "kwargs": {"size": 4, "note": str(note)}}
    _, run = live(**differentiated(kind, stop={"env_steps": 640}, **more))
    pids = {line["pid"] for line in run.all("proc_start") if line["process"].startswith("mlxe-exe")}
    told = [json.loads(line) for line in note.read_text().splitlines()]
    taken = [one["options"]["level"] for one in told if one["pid"] in pids]
    counts = [taken.count(level) for level in range(ITEMS)]
    # Where each steps alone, one may be ahead of the other.
    spread = 1 if kind == "is" else 1 + len(taken) // ITEMS
    assert len(taken) > 3 * ITEMS
    assert max(counts) - min(counts) <= spread, counts


@pytest.mark.long
@pytest.mark.parametrize("turns", [(), ((2, "mlxe-exe-1"), (8, "mlxe-exe-0"), (14, "mlxe-lrn"))])
def test_alone_a_stage_begins_with_the_next_episodes_whatever_dies(live, tmp_path, turns):
    note = tmp_path / "note"
    _, run = live(killing(*turns), **differentiated("oa", note, wrappers=[COUNTING]))
    assert len(run.all("proc_exit", expected=False)) >= len(turns)
    assert [line["stage"] for line in run.all("stage")] == [2, 3]
    told = [json.loads(line) for line in note.read_text().splitlines()]
    seeds = {one["seed"]: one["size"] for one in told}
    assert all(2 <= line["length"] <= 1 + seeds[line["seed"]] for line in run.all("episode_end"))
    for line in run.all("proc_start"):
        # A replaced executor goes on in the stage that the run is in, never in an earlier one.
        sizes = [one["size"] for one in told if one["pid"] == line["pid"]]
        if line["process"].startswith("mlxe-exe"):
            assert sizes == sorted(sizes)


@pytest.mark.long
@pytest.mark.parametrize("gradients", ["learner", "executors"])
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_alone_a_resumed_run_goes_on_in_its_stage(tmp_path, gradients, number):
    note = tmp_path / "note"
    table = differentiated("oa", note)
    if gradients == "learner":
        table["schedule"]["gradients"], table["algorithm"] = "learner", PPO
    chosen = settings(**table, **SAVING)
    folder = interrupted(tmp_path / "command", chosen, signal_number=number, chance=7, events=60)
    before = len(note.read_text().splitlines())
    _, run = run_here(chosen, resume=folder)
    told = [json.loads(line) for line in note.read_text().splitlines()[before:]]
    resumed = [STAGES[stage - 2].get("kwargs", {}).get("size", 9) for stage, *_ in stages_of(run)]
    pids = {line["pid"] for line in run.all("proc_start") if line["process"].startswith("mlxe-exe")}
    sizes = [one["size"] for one in told if one["pid"] in pids]
    # It begins in the stage before the first that is told to begin, or in the last one.
    assert min(sizes) == (resumed[0] if resumed else 9)
    assert max(sizes) == 9
