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
    ("apex", {"target_every": 4, "average": 0.1}),
    ("rainbow", {"target_every": 4, "average": 0.1}),
    ("ppo", {"epochs": 2, "minibatch": 8}),
    ("sac", {"n_step": 2}),
    ("sac discrete", {}),
    ("td3", {"policy_delay": 3, "noise_first": 0.5}),
    ("ddpg", {"normalise": True}),
]
BOX = Spaces(observation_shape=(3,), action_shape=(2,), action_low=(-1.0,) * 2, action_high=(3.0,) * 2)
BOXED = ("sac", "td3", "ddpg")


def made(name, settings, seed):
    algorithm = load_algorithm(name.split()[0])
    spaces = BOX if name in BOXED else SPACES
    settings = settings | ({"layers": [16], "learning_rate": 0.01} if name.split()[0] in BOXED else {})
    return algorithm(algorithm.Settings.model_validate(settings), spaces, seed=seed, learns=True)


def batch(kind, seed, spaces):
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
        "entropies": rng.random(shape).astype(np.float32),
        "terminated": np.zeros(shape, np.uint8),
        "truncated": np.zeros(shape, np.uint8),
        "cut": np.zeros(shape, np.uint8),
        "episode": np.zeros(shape, np.int64),
        "step": np.arange(shape[0]).reshape(-1, 1) + np.zeros(shape, np.int64) if kind == "rollouts" else None,
        "valid": np.ones(shape, bool),
        "version": np.ones(shape, np.int64),
    }
    if spaces is BOX:
        rows["raw_action"] = rng.normal(size=(*shape, 2)).astype(np.float32)
        rows["action"] = np.tanh(rows["raw_action"]) * 2 + 1
    return {key: value for key, value in rows.items() if value is not None}


def learn(algorithm, updates):
    for k in updates:
        clock = Clock(env_steps=10 * k, episodes=k, updates=k, version=1 + k // 2)
        algorithm.update(batch(algorithm.memory, k, algorithm.spaces), clock)


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
    idle = {"unused", "rows_seen", "epsilon", "noise"} | ({"moments.single"} if name in ("mlxe", "ddpg") else set())
    idle |= {"followed"} if settings.get("target") != "per_iteration" else set()
    idle |= {"rng"} if name in ("sac discrete", "ddpg") else set()
    idle |= {"torch.generator", "left.out"} | {key for key in whole if key.startswith("now.")}
    whole_networks = ("critics", "critic_targets", "actor", "actor_target", "see", "network", "learned", "target")
    parts = {}
    for key in set(whole) - idle - (set() if settings.get("average") else {"average"}):
        root = key.partition(".")[0]
        parts.setdefault(root if root in whole_networks else key, []).append(key)
    for part, keys in parts.items():
        other = made(name, settings, seed=4)
        fresh = {key: other.state()[key].astype(whole[key].dtype) for key in keys}
        if all(np.array_equal(fresh[key], whole[key]) for key in keys):
            continue
        other.restore({**whole, **fresh})
        learn(other, range(5, 8))
        assert not np.array_equal(first.weights(), other.weights()), part


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
    optimiser = "actor_optimiser." if name.partition(" ")[0] in BOXED else "optimiser."
    generator = "rng"
    beside = {key for key in older if key.startswith((optimiser, "target.")) or key in (generator, "followed")}
    for key in beside:
        np.testing.assert_array_equal(now[key], older[key], err_msg=key)
    assert {f"{optimiser}steps", generator} <= beside


def test_critics_their_optimiser_and_the_temperature_are_part_of_the_state():
    first = made("sac", {"temperature": 0.5}, seed=3)
    learn(first, range(5))
    state = first.state()
    moments = ("first_moment", "second_moment", "steps")
    optimisers = {f"{one}_optimiser.{name}" for one in ("actor", "critic", "temperature") for name in moments}
    layers = [f"{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")]
    critics = {f"{one}.{k}.{name}" for one in ("critics", "critic_targets") for k in (0, 1) for name in layers}
    actor = {f"actor.{name}" for name in layers}
    beside = {"rows_seen", "unused", "noise", "rng", "torch.generator", "left.out"}
    assert set(state) - {"discrete", "target_entropy"} == optimisers | critics | actor | beside | {"log_temperature"}
    second = made("sac", {"temperature": 0.5}, seed=4)
    older = {key: np.array(array) for key, array in state.items()}
    learn(first, range(5, 8))
    second.restore_around(first.weights(), older)
    now = second.state()
    for name in actor:
        np.testing.assert_array_equal(now[name], first.state()[name], err_msg=name)
    for name in optimisers | critics | {"log_temperature"}:
        np.testing.assert_array_equal(now[name], older[name], err_msg=name)
        assert (now[name] != first.state()[name]).any(), name
    # What was kept is what the optimisers go on with.
    places = [
        (second.temperature_optimiser, second.log_temperature),
        (second.critic_optimiser, second.critics[0][0].weight),
    ]
    assert all(one.weights.data_ptr() == parameter.data_ptr() for one, parameter in places)
