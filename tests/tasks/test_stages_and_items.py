"""Environments enter stages between episodes, and episodes begin with the seeds and items of their set."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.roles.evaluator import Evaluator
from mlxe_async.settings.task import task_of
from mlxe_async.tasks.conformance import conformance
from mlxe_async.tasks.items import EpisodeSet, Items
from mlxe_async.tasks.probe import probe
from mlxe_async.tasks.training import training_task
from mlxe_async.tasks.vector import VectorTask

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

ROWS = "staged_tasks:Rows-v0"
STAGES = [
    {"kwargs": {"size": 2}, "until_steps": 9, "max_episode_steps": 3},
    {"kwargs": {"size": 6}, "until_steps": 9},
    {},
]


@pytest.fixture
def note(tmp_path):
    return tmp_path / "note"


class First:
    """Takes the first action."""

    def greedy_many(self, flats, obs):
        return np.zeros(obs.shape[:2], np.int64)


def told(note):
    return [json.loads(line) for line in note.read_text().splitlines()]


def task(note, **more):
    return {"env": ROWS, "kwargs": {"note": str(note), "size": 9}, **more}


def test_each_environment_is_in_its_own_stage_and_tests_are_in_none(note):
    vector = VectorTask(task(note, stages=STAGES, max_episode_steps=50), 2)
    vector.enter(1, 1)
    for env in (0, 1):
        vector.reset(env, 5)
    vector.enter(0, 2)
    vector.reset(0, 5)
    test = VectorTask(task(note, stages=STAGES), 1, evaluation=True)
    test.reset(0, 5)
    assert [one["size"] for one in told(note)] == [2, 6, 9, 9]
    assert vector.max_episode_steps == 50
    vector.close()
    test.close()


def test_the_limit_of_a_stage_holds_in_it_alone(note):
    vector = VectorTask(task(note, stages=[{"until_steps": 1, "max_episode_steps": 1}, {}], max_episode_steps=50), 1)
    vector.reset(0, 5)
    step = vector.step(np.array([0]))
    assert step.truncated[0]
    vector.enter(0, 1)
    vector.reset(0, 5)
    assert not vector.step(np.array([0])).truncated[0]
    vector.close()


def test_an_environment_is_made_anew_only_where_its_stage_changes(note):
    vector = VectorTask(task(note, stages=STAGES), 1)
    first = vector.environment(0)
    vector.enter(0, 0)
    assert vector.environment(0) is first
    vector.enter(0, 1)
    assert vector.environment(0) is not first
    vector.rebuild(0)
    vector.reset(0, 5)
    assert told(note)[-1]["size"] == 6, "made anew after a fault it stays in its stage"
    vector.close()


def test_wrappers_of_a_stage_stand_in_place_of_the_tasks(note):
    wrapped = [{"entry": "staged_tasks:Halved", "kwargs": {"part": 0.25}}]
    stages = [{"until_steps": 1, "wrappers": wrapped}, {}]
    vector = VectorTask(task(note, stages=stages, wrappers=["staged_tasks:Halved"]), 1)
    rewards = []
    for stage in (0, 1):
        vector.enter(0, stage)
        vector.reset(0, 5)
        rewards.append(float(vector.step(np.array([1])).reward[0]))
    assert rewards == [0.25, 0.5]
    vector.close()


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (
            {"kwargs": {"shape": 3}},
            r"task.stages\[1\]: got observations \(3,\) <f4 and actions 2, expected the spaces of the",
        ),
        ({"kwargs": {"sise": 3}}, r"task.stages\[1\]: task.env: .*unexpected keyword argument 'sise'"),
        ({"wrappers": ["staged_tasks:Nothing"]}, r"task.stages\[1\]: .*Nothing"),
    ],
)
def test_a_stage_that_cannot_be_is_refused_by_the_probe(note, stage, said):
    with pytest.raises(TaskError, match=said):
        probe(task(note, stages=[{"until_steps": 9}, {**stage}]))


def test_the_probe_tries_all_stages_and_ends_in_the_first(note):
    facts = probe(task(note, stages=STAGES, max_episode_steps=40))
    assert {one["size"] for one in told(note)} == {2, 6, 9}
    assert told(note)[-1]["size"] == 2
    assert facts["max_episode_steps"] == 40


def items(path, *lines):
    path.write_text("\n".join(lines))
    return str(path)


def test_items_are_read_afresh_each_time(tmp_path):
    found = Items(items(tmp_path / "i", '{"level": [1]}', "", '{"level": [2]}'), "task.reset_options")
    assert len(found) == 2
    found[0]["level"].append(9)
    assert found[0] == {"level": [1]}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"a": 1}', "[1]"], r'task.reset_options: .*:2: got \'\[1\]\', expected a JSON object such as {"level": 3}'),
        (["{'a': 1}"], r":1: got .*, expected a JSON object"),
        (["", ""], r"got no item, expected JSON objects, one a line"),
        (["[" * 100_000], r":1: got .*, expected a JSON object"),
    ],
)
def test_a_line_that_is_no_item_is_told_with_its_place(tmp_path, lines, said):
    with pytest.raises(TaskError, match=said):
        Items(items(tmp_path / "i", *lines), "task.reset_options")


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(TaskError, match=r"cannot be read \(Is a directory\)"):
        Items(str(tmp_path), "task.reset_options")


def test_seeds_of_training_and_of_tests_are_those_of_their_sets():
    both = {"env": ROWS, "seeds": {"train": "10..19", "test": [3, 5]}}
    train, test = (EpisodeSet(task_of(both), evaluation=one) for one in (False, True))
    assert [train.of(seed, None)[0] for seed in (12, 19, 4321)] == [12, 19, 11]
    assert [test.of(number, None)[0] for number in (20_000, 20_001, 20_002)] == [3, 5, 3]


def test_what_is_reset_without_an_executor_has_an_item_too(note, tmp_path):
    path = items(tmp_path / "i", '{"level": 7}', '{"level": 8}')
    facts = probe({**task(note, reset_options=path), "env": "staged_tasks:Needing-v0"})
    assert facts["env"] == "Needing-v0"
    assert {json.dumps(one["options"]) for one in told(note)} <= {'{"level": 7}', '{"level": 8}'}


def test_tests_take_the_items_of_their_own_file_by_their_number(note, tmp_path):
    path = items(tmp_path / "i", '{"level": 7}', '{"level": 8}')
    vector = VectorTask(task(note, test_options=path), 1, evaluation=True)
    for seed in (20_000, 20_001, 20_002):
        vector.reset(0, seed)
    assert [one["options"]["level"] for one in told(note)] == [7, 8, 7]
    vector.close()


def test_without_a_file_of_their_own_tests_take_the_items_of_training(note, tmp_path):
    path = items(tmp_path / "i", '{"level": 7}', '{"level": 8}')
    vector = VectorTask({**task(note, reset_options=path), "env": "staged_tasks:Needing-v0"}, 1, evaluation=True)
    vector.reset(0, 20_001)
    assert told(note)[-1]["options"] == {"level": 8}
    vector.close()


def test_the_closer_look_resets_with_items_and_levels_too(note, tmp_path):
    path = items(tmp_path / "i", '{"level": 7}', '{"level": 8}')
    table = task(note, reset_options=path, seeds={"train": "3..4", "test": "5..6"})
    found = conformance({**table, "env": "staged_tasks:Needing-v0"}, lambda call: nullcontext(), 0.1)
    assert {one.promise: one.is_kept for one in found}["determinism"] is True
    assert {one["seed"] for one in told(note)} <= {3, 4}


@pytest.mark.parametrize("key", ["stages", "seeds", "reset_options"])
def test_such_episodes_are_stepped_one_by_one(key, tmp_path):
    path = items(tmp_path / "i", "{}")
    value = {"stages": [{"until_steps": 1}, {}], "seeds": {"train": "0..1", "test": "2..3"}, "reset_options": path}[key]
    made = training_task({"env": "CartPole-v1", "vectorize": "auto", key: value}, 2)
    assert isinstance(made, VectorTask)
    assert made.simulator is None
    made.close()
    with pytest.raises(TaskError, match=f"task.{key} is for environments that are stepped one by one"):
        training_task({"env": "CartPole-v1", "vectorize": "native", key: value}, 2)


def test_the_tests_of_a_run_take_each_item_and_each_seed_of_the_test_set(note, tmp_path):
    path = items(tmp_path / "i", *(json.dumps({"level": level}) for level in range(5)))
    table = task(note, test_options=path, seeds={"train": "0..9", "test": "100..104"})
    evaluator = Evaluator(First(), table, {"episodes": 5, "max_episode_steps": 2, "rule": None})
    evaluator.add(1, np.zeros(1, np.float32))
    while not evaluator.advance():
        pass
    evaluator.close()
    assert sorted(one["options"]["level"] for one in told(note)) == list(range(5))
    assert sorted(one["seed"] for one in told(note)) == list(range(100, 105))
