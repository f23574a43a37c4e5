"""What executors would act by without its being published ends a run that has begun, by its name, once it shows."""

import numpy as np
import pytest
import unpublished

from mlxe_async.algorithms import Clock
from mlxe_async.algorithms.interface import NoSettings
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.algorithms.state.published import EVERY, is_due
from mlxe_async.algorithms.state.untouched import seed_globals
from mlxe_async.errors import Unpublished
from mlxe_async.roles.likeness import Likeness
from mlxe_async.rows import Spaces

SPACES = Spaces((4,), actions=2)


def made(name, learns=True, seed=1):
    return getattr(unpublished, name)(NoSettings(), SPACES, seed=seed, learns=learns)


def batch(seed):
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(size=(6, 3, 4)).astype(np.float32),
        "action": rng.integers(2, size=(6, 3)),
        "valid": np.arange(18).reshape(6, 3) < 16,
    }


def run_of(name, updates, looks=True):
    """An algorithm after so many updates, each followed by a publication."""
    seed_globals(0)
    algorithm = made(name)
    likeness = Likeness(algorithm, (lambda: made(name, learns=False, seed=0)) if looks else None)
    for number in range(updates):
        clock = Clock(env_steps=18 * number, updates=number, version=number + 1)
        learned(algorithm, rows := batch(number), clock)
        likeness.learned(rows, clock)
        likeness.see(algorithm.weights())
    return algorithm


def test_it_is_looked_at_ever_more_rarely_but_always_again():
    due = [number for number in range(1, 3 * EVERY + 1) if is_due(number)]
    assert due == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, EVERY, 2 * EVERY, 3 * EVERY]


@pytest.mark.long
def test_what_begins_to_differ_after_some_updates_ends_the_run_with_the_attributes_name():
    run_of("Seldom", 3)  # the third is not looked at
    with pytest.raises(Unpublished, match=r"^after 4 updates an executor's Seldom would .*: temperature; "):
        run_of("Seldom", 4)


@pytest.mark.parametrize("name", ["Trains", "Averages", "OwnNoise", "DrawsByAll", "Counter", "LearnsBySelf", "Caches"])
def test_what_is_learned_is_the_same_to_the_last_bit_with_and_without_a_look(name):
    with_looks, without = run_of(name, 5), run_of(name, 5, looks=False)
    np.testing.assert_array_equal(with_looks.weights(), without.weights())
    state, other = with_looks.state(), without.state()
    assert state.keys() == other.keys()
    for key, array in state.items():
        np.testing.assert_array_equal(array, other[key], err_msg=key)
    assert with_looks.learns
    assert all(module.training for module in with_looks.net.modules())


def test_publications_without_an_update_between_them_are_not_looked_at():
    algorithm, asked = made("Number"), []
    likeness = Likeness(algorithm, lambda: asked.append(1) or made("Number", learns=False))
    likeness.see(algorithm.weights())
    assert not asked
