"""Ids are found without their module where an installed package registers them, or told what to install."""

import importlib
import sys

import gymnasium
import pytest

from mlxe_async.errors import TaskError
from mlxe_async.tasks import installed
from mlxe_async.tasks.making import find_spec

MISSING = {
    "MiniGrid-Empty-5x5-v0": "minigrid",
    "BabyAI-GoToRedBall-v0": "minigrid",
    "highway-fast-v0": "highway-env",
    "u-turn-v0": "highway-env",
    "FetchReach-v4": "gymnasium-robotics",
    "Meta-World/MT1": "metaworld",
    "FlappyBird-v0": "flappy-bird-gymnasium",
    "popgym-RepeatPreviousEasy-v0": "popgym",
    "PandaReach-v3": "panda-gym",
    "stocks-v0": "gym-anytrading",
    "mo-lunar-lander-v3": "mo-gymnasium",
    "deep-sea-treasure-v0": "mo-gymnasium",
    "MiniWorld-Hallway-v0": "miniworld",
    "VizdoomBasic-v1": "vizdoom",
    "NetHackScore-v0": "nle",
    "SimpleGrid-8x8-v0": "gym-simplegrid",
    "tetris_gymnasium/Tetris": "tetris-gymnasium",
    "bsuite/catch-v0": "shimmy bsuite",
    "dm_control/cartpole-swingup-v0": "shimmy dm-control",
}
OF_OLD_GYM = ("CrafterReward-v1", "SuperMarioBros-v0", "SuperMarioBros-1-1-v3", "Sokoban-v0", "procgen-coinrun-v0")


@pytest.mark.parametrize("env", MISSING)
def test_an_id_of_a_known_package_is_answered_with_what_to_install(env, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TaskError) as refusal:
        find_spec(env)
    assert str(refusal.value) == (
        f'task.env: "{env}" needs a package that is not installed: pip install {MISSING[env]}'
    )


@pytest.mark.parametrize("env", OF_OLD_GYM)
def test_an_id_of_gym_before_gymnasium_is_answered_with_what_to_write(env):
    with pytest.raises(TaskError, match=r'is an environment of gym, not of gymnasium.*wrap what .*"my_task:Mine"'):
        find_spec(env)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package built on gymnasium, as pip installs it, that registers an id when it is imported."""
    (tmp_path / "lanterns").mkdir()
    (tmp_path / "lanterns" / "__init__.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        'gymnasium.register("Lantern-v3", entry_point=CartPoleEnv)\n'
    )
    about = tmp_path / "lanterns-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lanterns\nVersion: 1.0\nRequires-Dist: gymnasium\n")
    (about / "RECORD").write_text("lanterns/__init__.py,,\nlanterns-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed._mentioning.cache_clear()
    yield tmp_path
    installed._mentioning.cache_clear()
    gymnasium.registry.pop("Lantern-v3", None)
    sys.modules.pop("lanterns", None)


def test_an_id_is_found_in_any_installed_package_that_is_built_on_gymnasium(package):
    assert find_spec("Lantern-v3").id == "Lantern-v3"


def test_a_package_that_does_not_mention_the_id_is_not_imported(package):
    with pytest.raises(TaskError, match='there is no environment "Lamp-v3"'):
        find_spec("Lamp-v3")
    assert "lanterns" not in sys.modules


def test_a_package_that_cannot_be_imported_leaves_the_answer_as_it_is(package):
    (package / "lanterns" / "__init__.py").write_text('register("Lantern-v3")\n')
    with pytest.raises(TaskError, match='there is no environment "Lantern-v3"'):
        find_spec("Lantern-v3")


def test_an_id_that_is_not_known_may_be_one_of_ones_own():
    with pytest.raises(TaskError) as refusal:
        find_spec("Catcher-v0")
    assert 'one that my_task.py registers is "my_task:Catcher-v0", with [run] python_path = ["."]' in str(refusal.value)
