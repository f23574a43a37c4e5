"""Built-in algorithms are written as the page teaches one's own: by four verbs, modules of torch, and attributes."""

import importlib.util
import sys

import numpy as np
import pytest
import torch
from papers import text_of

from mlxe_async.algorithms import REGISTRY, Acting, Algorithm, Clock, load_algorithm
from mlxe_async.algorithms.interface import learned
from mlxe_async.rows import Spaces

BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
OTHERS = {"a2c", "apex", "c51", "dqn", "impala", "mlxe", "ppo", "q_learning", "rainbow", "reinforce", "sarsa"}
"""Those that still have a constructor, a state and a way of being loaded of their own; the list may only shrink."""
NAMES = sorted(REGISTRY.keys() - OTHERS)
ENGINES = ("__init__", "state", "restore", "load", "weights", "set_weights", "restore_around")
"""What the base class does with attributes alone."""


def made(kind, seed=1):
    return kind(kind.Settings(layers=(8,), batch=16), BOX, seed=seed, learns=True)


def rows(algorithm, number):
    rng = np.random.default_rng(number)
    obs, following = rng.normal(size=(2, 16, 3)).astype(np.float32)
    known = {"obs": obs, "next_obs": following, "reward": rng.normal(size=16).astype(np.float32)}
    return known | algorithm.act(obs, rng, Acting()) | {"terminated": (np.arange(16) % 5 == 0).astype(np.uint8)}


def learn(algorithm, numbers):
    for number in numbers:
        learned(algorithm, rows(algorithm, number), Clock(env_steps=16 * number, updates=number, version=number))


def overridden(kind):
    return {name for name in ENGINES for one in kind.__mro__ if name in vars(one) and one not in (Algorithm, object)}


@pytest.mark.parametrize("name", REGISTRY)
def test_no_class_does_what_the_base_class_does_by_attributes(name):
    assert bool(overridden(load_algorithm(name))) == (name in OTHERS)


@pytest.mark.parametrize("name", NAMES)
def test_at_most_three_classes_lie_between_a_paper_and_the_base(name):
    between = load_algorithm(name).__mro__[: load_algorithm(name).__mro__.index(Algorithm) + 1]
    assert len(between) <= 4 if name == "td3" else len(between) <= 3  # TD3 is DDPG with three changes


@pytest.mark.parametrize("name", NAMES)
def test_what_learns_are_modules_of_torch_and_their_state_goes_round_by_attributes(name):
    one, two = (made(load_algorithm(name), seed) for seed in (1, 7))
    parts = {key: value for key, value in vars(one).items() if isinstance(value, torch.nn.Module)}
    assert {"see", "actor", "critics", "critic_targets"} <= parts.keys()
    assert {type(layer) for layer in one.actor} == {torch.nn.Linear, torch.nn.ReLU}
    learn(one, range(4))
    two.restore(one.state())
    for each in (one, two):
        learn(each, range(4, 8))
    mine, theirs = one.state(), two.state()
    assert mine.keys() == theirs.keys()
    for key, array in mine.items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_of_the_file_learns_what_the_file_learns_bit_for_bit(name, tmp_path, monkeypatch):
    place = tmp_path / f"my_{name}.py"
    place.write_text(text_of(name))
    spec = importlib.util.spec_from_file_location(place.stem, place)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, place.stem, module)
    spec.loader.exec_module(module)
    built_in = load_algorithm(name)
    one, two = made(built_in), made(getattr(module, built_in.__name__))
    for each in (one, two):
        learn(each, range(6))
    np.testing.assert_array_equal(one.weights(), two.weights())
