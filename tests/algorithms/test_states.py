"""An algorithm that takes up the state of another one learns on as that one would have, bit for bit."""

import numpy as np
import pytest

from mlxe_async.algorithms import Clock, load_algorithm
from mlxe_async.maths.generators import generator_words, set_generator
from mlxe_async.rows import Spaces, Symmetry

SPACES = Spaces(observation_shape=(3,), actions=2, symmetry=Symmetry((-1.0, -1.0, 1.0), (1, 0)))
CASES = [
    ("mlxe", {}),
    ("mlxe", {"target": "every_k", "target_every": 3, "average": 0.1, "normalise": True, "noisy": True}),
    ("mlxe", {"target": "per_iteration", "optimiser": "adam"}),
    ("dqn", {"target_every": 4, "average": 0.1}),
    ("ppo", {"epochs": 2, "minibatch": 8}),
]


def made(name, settings, seed):
    algorithm = load_algorithm(name)
    return algorithm(algorithm.Settings.model_validate(settings), SPACES, seed=seed, learns=True)


def batch(kind, seed):
    rng = np.random.default_rng(seed)
    shape = (6, 4) if kind == "rollouts" else (16,)
    rows = {
        "obs": rng.normal(size=(*shape, 3)).astype(np.float32),
        "next_obs": rng.normal(size=(*shape, 3)).astype(np.float32),
        "cut_obs": rng.normal(size=(*shape, 3)).astype(np.float32),
        "action": rng.integers(0, 2, shape),
        "log_prob": np.full(shape, np.log(0.5), np.float32),
        "reward": rng.normal(size=shape).astype(np.float32),
        "partial": rng.normal(size=shape).astype(np.float32),
        "coefficient": np.full(shape, 0.9, np.float32),
        "terminated": np.zeros(shape, np.uint8),
        "truncated": np.zeros(shape, np.uint8),
        "cut": np.zeros(shape, np.uint8),
        "episode": np.zeros(shape, np.int64),
        "step": np.arange(shape[0]).reshape(-1, 1) + np.zeros(shape, np.int64) if kind == "rollouts" else None,
        "valid": np.ones(shape, bool),
        "version": np.ones(shape, np.int64),
    }
    return {key: value for key, value in rows.items() if value is not None}


def learn(algorithm, updates):
    for k in updates:
        clock = Clock(env_steps=10 * k, episodes=k, updates=k, version=1 + k // 2)
        algorithm.update(batch(algorithm.memory, k), clock)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_it_learns_on_as_the_other_would_have(name, settings):
    first = made(name, settings, seed=3)
    learn(first, range(5))
    state = {key: np.array(array) for key, array in first.state().items()}
    second = made(name, settings, seed=4)
    second.restore(state)
    learn(first, range(5, 12))
    assert any((state[key] != first.state()[key]).any() for key in state)
    learn(second, range(5, 12))
    np.testing.assert_array_equal(first.weights(), second.weights())
    for key, array in first.state().items():
        np.testing.assert_array_equal(array, second.state()[key], err_msg=key)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_every_part_of_the_state_matters(name, settings):
    first = made(name, settings, seed=3)
    learn(first, range(5))
    whole = first.state()
    learn(first, range(5, 8))
    # What the next update makes anew, or has no use for.
    idle = {"unused", "rows_seen", "epsilon"} | ({"moments.single"} if name == "mlxe" else set())
    idle |= {"followed"} if settings.get("target") != "per_iteration" else set()
    for key in sorted(set(whole) - idle - (set() if settings.get("average") else {"average"})):
        other = made(name, settings, seed=4)
        fresh = other.state()[key]
        if np.array_equal(fresh, whole[key]):
            continue
        other.restore({**whole, key: fresh.astype(whole[key].dtype)})
        learn(other, range(5, 8))
        assert not np.array_equal(first.weights(), other.weights()), key


def test_a_count_of_due_updates_goes_on():
    first, second = (made("dqn", {"start_rows": 10, "train_every": 3}, seed) for seed in (1, 2))
    first.updates_due(rows=11, new_rows=11, new_segments=1)
    second.restore(first.state())
    assert first.updates_due(rows=12, new_rows=1, new_segments=1) == 1
    assert second.updates_due(rows=12, new_rows=1, new_segments=1) == 1


def test_a_generator_goes_on_from_words():
    first, second = np.random.default_rng(1), np.random.default_rng(2)
    first.integers(0, 9, 3, dtype=np.uint32)  # leaves half a word behind
    set_generator(second, generator_words(first))
    assert first.integers(0, 9, 5, dtype=np.uint32).tolist() == second.integers(0, 9, 5, dtype=np.uint32).tolist()
    with pytest.raises(ValueError, match="expected PCG64"):
        generator_words(np.random.Generator(np.random.MT19937(1)))


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_newer_weights_are_gone_on_from_with_what_an_older_state_has_beside_them(name, settings):
    first = made(name, settings, seed=3)
    learn(first, range(5))
    older = first.state()
    learn(first, range(5, 8))
    second = made(name, settings, seed=4)
    second.restore_around(first.weights(), older)
    np.testing.assert_array_equal(second.weights(), first.weights())
    now = second.state()
    beside = {key for key in older if key.startswith("optimiser.") or key in ("generator", "target", "followed")}
    for key in beside:
        np.testing.assert_array_equal(now[key], older[key], err_msg=key)
    assert {"optimiser.steps", "generator"} <= beside
