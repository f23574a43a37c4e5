"""MinAtar's games by their ids: its package registers them only when asked, and may be missing."""

import importlib.util
import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.tasks.making import find_spec
from mlxe_async.tasks.probe import probe


class Cells(gymnasium.Env):
    """Bits as MinAtar's games have them."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (10, 10, 4), bool)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros((10, 10, 4), bool), {}

    def step(self, action):
        return np.ones((10, 10, 4), bool), 1, False, False, {}


@pytest.fixture
def package(monkeypatch):
    """A stand-in for the package, which registers its game in a registry of the test's own."""
    monkeypatch.setattr("gymnasium.registry", dict(gymnasium.registry))
    monkeypatch.setattr("gymnasium.envs.registration.registry", gymnasium.registry)
    top, inner = ModuleType("minatar"), ModuleType("minatar.gym")
    top.__path__, inner.asked = [], 0

    def register_envs():
        inner.asked += 1
        gymnasium.register("MinAtar/Breakout-v1", entry_point=Cells)

    inner.register_envs = register_envs
    for module in (top, inner):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return inner


def test_a_game_is_known_by_its_id_alone(package):
    for _ in range(2):
        assert find_spec("MinAtar/Breakout-v1").id == "MinAtar/Breakout-v1"
    assert package.asked == 1
    spaces = probe({"env": "MinAtar/Breakout-v1", "channels_first": True})["spaces"]
    assert (spaces["observation_shape"], spaces["observation_dtype"]) == ([4, 10, 10], "<f4")


def test_a_game_that_it_does_not_have_is_told_with_the_nearest(package):
    with pytest.raises(TaskError, match=r'no environment "MinAtar/Brekout-v1"; did you mean MinAtar/Breakout-v1'):
        find_spec("MinAtar/Brekout-v1")


@pytest.mark.skipif(importlib.util.find_spec("minatar") is not None, reason="the package is there")
def test_without_the_package_the_extra_is_named():
    with pytest.raises(TaskError, match=r'pip install "mlxe_async\[minatar\]"'):
        find_spec("MinAtar/Breakout-v1")
