"""What is saved beside the newest weights: the best ones that were tested."""

import threading

import numpy as np
import pytest

from mlxe_async.settings import load_settings
from mlxe_async.storage import checkpoints
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.supervisor.checkpointing.weights import WeightsSaver
from mlxe_async.supervisor.plan.budget import Counters

FACTS = {"parameters": [["w", [2]]], "spaces": {}, "algorithm": {}}


class Listening:
    """The log, as far as a saver tells it."""

    def __init__(self):
        self.told = []

    def emit(self, event):
        self.told.append(event)


@pytest.fixture
def made(tmp_path):
    settings = load_settings({"task": {"env": "CartPole-v1"}, "checkpoint": {"keep": 2}})
    with RunFolder.create(tmp_path, "x") as folder:
        log = Listening()
        yield WeightsSaver(settings, FACTS, folder, log, Counters()), log.told, folder.path


def flat(version):
    return np.full(2, version, np.float32)


def save(saver, version, **about):
    saver.save(version, flat(version), solved_at=None, **about)


def kept(path):
    """Version and score of the best checkpoint, version of the last one; the weights are those of the version."""
    found = []
    for kind in ("best", "last"):
        tensors, facts = checkpoints.load(path / "checkpoints", kind)
        assert tensors["w"].tolist() == [facts["version"]] * 2
        found += [facts["version"], facts.get("score")] if kind == "best" else [facts["version"]]
    return found


def test_the_best_tested_version_is_saved_with_the_next_checkpoint_and_only_once(made):
    saver, told, path = made
    for version, score in ((1, 10.0), (2, 30.0), (3, 20.0)):
        saver.tested(version, flat(version), score)
    assert told == []
    for version in range(4, 9):
        save(saver, version)
    assert kept(path) == [2, 30.0, 8]
    assert [(event.version, event.best) for event in told] == [(2, True), *[(v, False) for v in range(4, 9)]]
    assert len(list((path / "checkpoints").iterdir())) == 3


def test_of_two_alike_the_newer_one_is_saved_and_a_better_one_takes_its_place(made):
    saver, _, path = made
    saver.tested(1, flat(1), 10.0)
    saver.tested(2, flat(2), 10.0)
    save(saver, 3)
    assert kept(path) == [2, 10.0, 3]
    saver.tested(4, flat(4), 11.0)
    save(saver, 5)
    assert kept(path) == [4, 11.0, 5]
    assert len(list((path / "checkpoints").iterdir())) == 3


def test_the_newest_version_is_not_saved_twice_when_it_is_the_best(made):
    saver, told, path = made
    saver.tested(7, flat(7), 10.0)
    save(saver, 7)
    assert kept(path) == [7, 10.0, 7]
    assert [(event.version, event.best) for event in told] == [(7, False)]
    for version in (8, 9, 10):
        save(saver, version)
    assert kept(path) == [7, 10.0, 10]


def test_a_return_that_is_no_number_is_no_score(made):
    saver, _, path = made
    saver.tested(1, flat(1), 10.0)
    saver.tested(2, flat(2), float("inf"))
    saver.tested(3, flat(3), float("nan"))
    save(saver, 4)
    assert kept(path) == [1, 10.0, 4]


def test_the_best_counts_as_saved_only_when_it_is_on_disk(made, monkeypatch):
    saver, told, path = made
    saver.tested(1, flat(1), 10.0)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", lambda *_: (_ for _ in ()).throw(OSError("full")))
        save(saver, 2)
    assert [event.name for event in told] == ["checkpoint_rejected", "checkpoint_rejected"]
    assert saver.unsaved == "full"
    save(saver, 3)
    assert saver.unsaved is None
    assert kept(path) == [1, 10.0, 3]


def test_what_solved_the_task_is_saved_at_once_and_alone(made):
    saver, told, path = made
    saver.tested(2, flat(2), 10.0)
    save(saver, 1, solved=True)
    assert [(event.version, event.solved, event.best) for event in told] == [(1, True, False)]
    for version in (3, 4, 5):
        save(saver, version)
    assert kept(path) == [2, 10.0, 5]
    assert checkpoints.load(path / "checkpoints", "solved")[1]["version"] == 1


def test_subscribers_hear_of_it_from_the_loops_thread_whichever_thread_saved(made):
    saver, told, _ = made
    heard = []
    thread = threading.Thread(target=lambda: (save(saver, 1), heard.append(list(told))))
    thread.start()
    thread.join()
    assert heard == [[]]
    saver.tell()
    assert [type(one).__name__ for one in told] == ["Checkpoint"]
    save(saver, 2)
    assert [one.version for one in told] == [1, 2]
