"""What a learner changes is kept, so that a run that goes on learns the same bits; what is not is told by its name."""

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import unkept
from unkept import TOLD

from mlxe_async.algorithms import REGISTRY, Acting, Clock
from mlxe_async.algorithms.interface import NoSettings
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.algorithms.state.namespaces import Namespaces, is_own
from mlxe_async.algorithms.state.unkept import Unkept
from mlxe_async.rows import Spaces, standard_columns
from mlxe_async.workers import rehearsal

SPACES = Spaces((4,), actions=2)
BOX = Spaces((4,), action_shape=(1,), action_low=(-2.0,), action_high=(3.0,))
INTEGERS = Spaces((4,), actions=2, observation_sizes=(4,))
SPACES_OF = dict.fromkeys(("sac", "td3", "ddpg"), BOX) | dict.fromkeys(("q_learning", "sarsa"), INTEGERS)
KEPT = ["GlobalNumpy", "GlobalPython", "GlobalTorch", "Numbers", "Penalised"]


def made(name, seed=1):
    kind = getattr(unkept, name)
    return kind(NoSettings() if kind.Settings is NoSettings else kind.Settings(), SPACES, seed=seed, learns=True)


def batch(seed, algorithm):
    """Made-up rows, as rollouts (T, B, ...), or single ones."""
    rng = np.random.default_rng(seed)
    lead = (6, 3) if algorithm.memory == "rollouts" else (32,)
    columns = (*standard_columns(SPACES), *algorithm.extra_columns, *algorithm.derived_columns)
    rows = {column.name: np.zeros((*lead, *column.shape), column.dtype) for column in columns}
    rows["obs"], rows["next_obs"] = (rng.normal(size=(*lead, 4)).astype(np.float32) for _ in range(2))
    rows["action"] = rng.integers(2, size=lead)
    rows["reward"] = rng.normal(size=lead).astype(np.float32)
    more = {"valid": np.ones(lead, bool)} if len(lead) == 2 else {"weight": np.ones(lead, np.float32)}
    return {**rows, **more}


def learn(algorithm, first, last):
    for number in range(first, last):
        learned(algorithm, batch(number, algorithm), Clock(env_steps=18 * number, updates=number, version=1))


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    unkept.SCALE, unkept.OfClass.seen = 1.0, 0


@pytest.mark.parametrize("name", TOLD)
def test_what_is_not_kept_is_told_once_by_its_name_and_the_rest_is(name):
    algorithm = made(name)
    watch, first = Unkept(algorithm, Namespaces(type(algorithm))), algorithm.state()
    told = watch.news()
    learn(algorithm, 0, 3)
    told += watch.news()
    assert [one for one in told if one.startswith(TOLD[name])], told
    assert len(told) == 1
    assert watch.news() == []
    state = algorithm.state()
    assert {key: (array.shape, array.dtype) for key, array in state.items()} == {
        key: (array.shape, array.dtype) for key, array in first.items()
    }
    made(name, seed=7).restore(state)
    algorithm.restore(state)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_is_learned_on_from_to_the_last_bit_and_nothing_is_told(name):
    one, two = made(name), made(name, seed=7)
    watch = Unkept(one, Namespaces(type(one)))
    learn(one, 0, 3)
    state = one.state()
    learn(one, 3, 6)
    random.gauss(0, 1)
    np.random.random(5)
    two.restore(state)
    learn(two, 3, 6)
    np.testing.assert_array_equal(one.weights(), two.weights())
    for key, array in one.state().items():
        np.testing.assert_array_equal(array, two.state()[key], err_msg=key)
    assert watch.news() == []


@pytest.mark.parametrize("name", ["GlobalNumpy", "GlobalPython"])
def test_what_is_drawn_follows_from_the_seed_and_is_nobody_elses(name):
    found = []
    for others in (1, 2):
        random.seed(others)
        np.random.seed(others)
        algorithm = made(name)
        expected = random.getstate(), np.random.random()
        np.random.seed(others)
        learn(algorithm, 0, 2)
        assert (random.getstate(), np.random.random()) == expected
        found.append(algorithm.weights())
    np.testing.assert_array_equal(*found)
    other = made(name, seed=2)
    learn(other, 0, 2)
    assert not np.array_equal(other.weights(), found[0])


def test_what_an_author_draws_while_acting_follows_from_the_rollouts_generator():
    drawn = []
    for seed in (1, 1, 2):
        rng = np.random.default_rng(seed)
        unkept.Penalised(unkept.Penalised.Settings(), SPACES, seed=0, learns=False).begin_rollout(rng)
        drawn.append((random.gauss(0, 1), np.random.random()))
    assert drawn[0] == drawn[1] != drawn[2]


def rehearsed(algorithm, number):
    """Rows as a memory hands them out, which this object has acted on."""
    spaces, rng = algorithm.spaces, np.random.default_rng(number)
    if spaces.observation_sizes:
        obs = np.eye(4, dtype=np.float32)[rng.integers(4, size=32)]
    else:
        obs = rng.normal(size=(32, 4)).astype(np.float32)
    return rehearsal.batch_of(algorithm, rehearsal.made_up_rows(algorithm, obs, spaces, Acting()))


@pytest.mark.parametrize("name", REGISTRY)
def test_a_copy_of_a_built_in_file_keeps_what_the_file_keeps_and_nothing_is_told(name, tmp_path, monkeypatch):
    module, _, class_name = REGISTRY[name].partition(":")
    file = tmp_path / f"my_{name}.py"
    file.write_text(Path(importlib.import_module(module).__file__).read_text())
    spec = importlib.util.spec_from_file_location(file.stem, file)
    copied = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, copied)
    spec.loader.exec_module(copied)
    kind = getattr(copied, class_name)
    table = {"batch": 16} if "batch" in kind.Settings.model_fields else {}
    one, two = (
        kind(kind.Settings.model_validate(table), SPACES_OF.get(name, SPACES), seed=s, learns=True) for s in (1, 7)
    )
    watch = Unkept(one, Namespaces(kind))
    assert is_own(kind)
    assert watch.news() == []
    for number in range(2):
        learned(one, rehearsed(one, number), Clock(env_steps=32 * number, updates=number, version=1))
    two.set_weights(one.weights())
    two.restore(one.state())
    rows = rehearsed(one, 2)
    for each in (one, two):
        learned(each, rows, Clock(env_steps=64, updates=2, version=1))
    np.testing.assert_array_equal(one.weights(), two.weights())
    assert watch.news() == []
