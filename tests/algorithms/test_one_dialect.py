"""Built-in algorithms are written as the page teaches one's own: by four verbs, modules of torch, and attributes."""

import contextlib
import importlib.util
import sys

import numpy as np
import pytest
import torch
from papers import text_of

from mlxe_async.algorithms import REGISTRY, Acting, Algorithm, Clock, load_algorithm
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.rows import Spaces
from mlxe_async.workers import rehearsal

BOX = Spaces((3,), action_shape=(2,), action_low=(-3.0, 0.0), action_high=(1.0, 8.0))
ONE = Spaces((3,), actions=3)
INTEGERS = Spaces((3,), actions=2, observation_sizes=(3,))
NAMES = sorted(REGISTRY)
ENGINES = ("__init__", "state", "restore", "load", "weights", "set_weights", "restore_around")
"""What the base class does with attributes alone."""


SMALL = {"layers": (8,), "batch": 16, "policy": (8,), "value": (8,), "minibatch": 16, "start_rows": 1}


def made(kind, seed=1):
    settings = {key: value for key, value in SMALL.items() if key in kind.Settings.model_fields}
    return kind(kind.Settings(**settings), spaces_of(kind), seed=seed, learns=True)


def spaces_of(kind):
    """The first of these that it takes."""
    for spaces in (BOX, ONE, INTEGERS):
        with contextlib.suppress(ValueError):
            kind(kind.Settings(), spaces, seed=0, learns=False)
            return spaces
    raise AssertionError(f"{kind.__name__} takes none of these spaces")


def rows(algorithm, number):
    rng = np.random.default_rng(number)
    obs = rng.normal(size=(32, 3)).astype(np.float32)
    if algorithm.spaces is INTEGERS:
        obs = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 32)]
    actor = made(type(algorithm), seed=5)  # whatever the learner's own object has drawn
    return rehearsal.batch_of(algorithm, rehearsal.made_up_rows(actor, obs, algorithm.spaces, Acting()))


def learn(algorithm, numbers):
    for number in numbers:
        learned(algorithm, rows(algorithm, number), Clock(env_steps=16 * number, updates=number, version=number))


def overridden(kind):
    return {name for name in ENGINES for one in kind.__mro__ if name in vars(one) and one not in (Algorithm, object)}


@pytest.mark.parametrize("name", NAMES)
def test_no_class_does_what_the_base_class_does_by_attributes(name):
    assert not overridden(load_algorithm(name))


@pytest.mark.parametrize("name", NAMES)
def test_at_most_three_classes_lead_from_a_paper_to_the_base(name):
    between = load_algorithm(name).__mro__[: load_algorithm(name).__mro__.index(Algorithm) + 1]
    assert len(between) <= 3


@pytest.mark.parametrize("name", NAMES)
def test_what_learns_are_modules_of_torch_and_their_state_goes_round_by_attributes(name):
    one, two = (made(load_algorithm(name), seed) for seed in (1, 7))
    parts = {key: value for key, value in vars(one).items() if isinstance(value, torch.nn.Module)}
    if one.spaces is not INTEGERS:
        assert ({"see", "actor"} < parts.keys()) or ({"network", "learned", "target"} <= parts.keys())
    layers = {type(layer).__name__ for part in parts.values() for layer in part.modules()} - {
        "ModuleDict",
        "ModuleList",
    }
    assert layers <= {
        "ActionValues",
        "ActorCritic",
        "Body",
        "Dense",
        "Linear",
        "LayerNorm",
        "NoisyLinear",
        "ReLU",
        "Tanh",
        "Normaliser",
    }
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
