"""Processes tell which code they have of their algorithm; two that differ are told apart by the place."""

import json
import os
import signal
import sys
import types
from pathlib import Path

import pytest

from mlxe_async.algorithms import load_algorithm
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.errors import SettingsError
from mlxe_async.maths import returns
from mlxe_async.workers import code
from mlxe_async.workers.code import code_of, code_told_by_a_fork, expect_the_same


def test_the_same_code_has_the_same_digests_and_none_from_elsewhere():
    for name in ("ppo", "sac", "q_learning"):
        found = code_of(load_algorithm(name))
        assert found["elsewhere"] == []
        assert found == code_of(load_algorithm(name))
        assert len(found["modules"]) > 10


def _loss(self, rows):
    return rows


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (PPO, "loss", _loss),
        (PPO, "off_policy", "ignores"),
        (returns, "normalised", lambda advantage: advantage),
        (returns, "PUBLISHED_CURVE", (1, 2)),
        (PPO, "more", property(lambda self: 1)),
        (PPO, "update", types.FunctionType(_loss.__code__, {}, "update")),
    ],
)
def test_a_difference_is_told_by_its_module_and_by_its_file_where_that_is_another(place, name, value, monkeypatch):
    learner = code_of(PPO)
    monkeypatch.setattr(place, name, value, raising=False)
    with pytest.raises(SettingsError, match=r"algorithm\.name: mlxe_async\.\S+ .*not the same in mlxe-exe-0 as in the"):
        expect_the_same("mlxe-exe-0", code_of(PPO), learner)


def test_modules_that_one_alone_has_imported_say_nothing():
    mine = {"modules": {"a": "1", "b": "2"}, "elsewhere": []}
    expect_the_same("mlxe-exe-0", mine, {"modules": {"b": "2", "c": "3"}, "elsewhere": []})


def test_a_users_module_is_told_of_too_but_not_its_state(monkeypatch):
    module = types.ModuleType("somebodys")
    module.__file__ = "/somewhere/somebodys.py"
    monkeypatch.setitem(sys.modules, "somebodys", module)
    text = "from mlxe_async.algorithms import Algorithm\nBEGAN = 1\nclass Mine(Algorithm):\n    def update(self): pass"
    exec(text, vars(module))  # noqa: S102 - made for this test
    before = code_of(module.Mine)
    module.BEGAN = 2
    assert code_of(module.Mine) == before
    module.Mine.update = _loss
    assert code_of(module.Mine)["modules"]["somebodys"] != before["modules"]["somebodys"]


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_fork_tells_the_same_code_and_nothing_of_it_is_left():
    before, descriptors = children(), sorted(Path("/proc/self/fd").iterdir())
    assert code_told_by_a_fork(PPO) == json.loads(json.dumps(code_of(PPO)))
    assert sorted(Path("/proc/self/fd").iterdir()) == descriptors
    assert children() == before


@pytest.mark.parametrize("how", ["dies", "says nothing"])
def test_a_fork_that_does_not_answer_is_done_without(monkeypatch, how):
    here = os.getpid()

    def in_a_fork_it_fails(algorithm):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL if how == "dies" else signal.SIGSTOP)
        return {"modules": {}, "elsewhere": []}

    monkeypatch.setattr(code, "code_of", in_a_fork_it_fails)
    monkeypatch.setattr(code, "LONGEST_S", 0.2)
    before = children()
    assert code_told_by_a_fork(PPO) == {"modules": {}, "elsewhere": []}
    assert children() == before


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_that_a_virtual_environment_sees_from_outside_are_not_the_users_own(folder, monkeypatch):
    module = types.ModuleType("numeric")
    module.__file__ = f"/usr/lib/python3/{folder}/numeric/__init__.py"
    monkeypatch.setitem(sys.modules, "numeric", module)
    monkeypatch.setattr(returns, "numeric", module, raising=False)
    assert "numeric" not in code_of(PPO)["modules"]
