"""Within a rollout of a built-in algorithm layers are examined once: the same numbers; changes count from the next."""

import copy

import numpy as np
import pytest
import torch

from mlxe_async.algorithms import Acting, load_algorithm
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.rows import Spaces

BOUNDED = Spaces((4,), action_shape=(2,), action_low=(-1.0, -2.0), action_high=(1.0, 2.0))
SPACES = {"discrete": Spaces((4,), actions=3), "numbers": BOUNDED}
CASES = [
    *(("ppo", "discrete", {"normalise": one}) for one in (True, False)),
    *(("ppo", "numbers", settings) for settings in ({"deviation": "computed"}, {"common": (8,)})),
    ("dqn", "discrete", {"noisy": True}),
    ("apex", "discrete", {}),
    ("sac", "numbers", {}),
    ("td3", "numbers", {}),
    ("mlxe", "discrete", {}),
]


def executor(name, spaces, settings):
    kind = load_algorithm(name)
    return kind(kind.Settings(**settings), SPACES[spaces], seed=0, learns=False)


def flat(algorithm, seed):
    """Weights (P,) of another object, and moments that say something."""
    learner = type(algorithm)(algorithm.settings, algorithm.spaces, seed=seed, learns=False)
    body = getattr(learner, "see", None)
    if body is not None and body.normaliser is not None:
        body.count(np.random.default_rng(seed).normal(3, 2, size=(50, 4)).astype(np.float32))
    return learner.weights()


def acted(algorithm, seed=0):
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(5, 4)).astype(np.float32)
    return algorithm.act(obs, rng, Acting().start(algorithm.carry, 5))


@pytest.mark.parametrize(("name", "spaces", "settings"), CASES)
def test_what_is_examined_once_acts_the_same_to_the_last_bit(name, spaces, settings):
    once, each = (executor(name, spaces, settings) for _ in range(2))
    for seed in range(3):
        for one in (once, each):
            one.load(flat(one, seed))
        once.begin_rollout(np.random.default_rng(seed))
        each.begin_rollout(np.random.default_rng(seed))
        assert once._modules._settled
        for module in each._modules._settled:
            module.unsettle()
        for step in range(3):
            mine, theirs = acted(once, step), acted(each, step)
            assert mine.keys() == theirs.keys()
            for column, found in theirs.items():
                np.testing.assert_array_equal(mine[column], found, column)


def test_a_hook_counts_when_the_next_rollout_begins_and_after_a_load_at_once():
    algorithm, heard = executor("ppo", "discrete", {}), []
    algorithm.begin_rollout(np.random.default_rng(0))
    acted(algorithm)
    algorithm.actor.register_forward_hook(lambda *_: heard.append(1))
    algorithm.begin_rollout(np.random.default_rng(0))
    acted(algorithm)
    assert heard == [1]
    algorithm.load(algorithm.weights())
    algorithm.see.register_forward_hook(lambda *_: heard.append(2))
    acted(algorithm)
    assert heard == [1, 2, 1]


class Mine(PPO):
    """Attaches to its layers whatever it likes whenever it likes."""


def test_an_own_class_is_examined_at_each_call():
    algorithm, heard = Mine(Mine.Settings(), SPACES["discrete"], seed=0, learns=False), []
    algorithm.begin_rollout(np.random.default_rng(0))
    acted(algorithm)
    algorithm.actor.register_forward_hook(lambda *_: heard.append(1))
    acted(algorithm)
    assert heard == [1]


def test_a_copy_of_a_body_goes_by_its_own_moments():
    algorithm = executor("ppo", "discrete", {})
    algorithm.load(flat(algorithm, 0))
    algorithm.begin_rollout(np.random.default_rng(0))
    acted(algorithm)
    mine = copy.deepcopy(algorithm.see)
    mine.count(np.full((1000, 4), 7.0, np.float32))
    obs = np.full((1, 4), 7.0, np.float32)
    assert np.abs(mine(obs)).max() < np.abs(algorithm.see(obs)).max()


def test_moments_that_are_counted_or_put_back_are_shown_at_once():
    algorithm = executor("ppo", "discrete", {})
    obs, state = np.full((1, 4), 7.0, np.float32), algorithm.state()
    algorithm.begin_rollout(np.random.default_rng(0))
    np.testing.assert_array_equal(algorithm.see(obs), obs)  # nothing was counted
    algorithm.see.count(np.random.default_rng(0).normal(7, 1, size=(1000, 4)).astype(np.float32))
    assert np.abs(algorithm.see(obs)).max() < 1
    algorithm.begin_rollout(np.random.default_rng(0))
    algorithm.restore(state)
    np.testing.assert_allclose(algorithm.see(obs), algorithm.see(torch.from_numpy(obs)), atol=1e-5)


@pytest.mark.parametrize(("name", "spaces", "settings"), CASES)
def test_versions_are_examined_once_when_they_are_loaded_and_choose_the_same(name, spaces, settings):
    algorithm = executor(name, spaces, settings)
    obs = np.random.default_rng(7).normal(size=(2, 5, 4)).astype(np.float32)
    for seeds in ((1, 2), (3, 4)):
        flats = np.stack([flat(algorithm, seed) for seed in seeds])
        once = algorithm.greedy_many(flats, obs)
        versions = algorithm._modules.versions.group(flats).objects[: len(flats)]
        assert all(one._modules._settled for one in versions)
        for one, vector, seen, chosen in zip(versions, flats, obs, once, strict=True):
            one.load(vector)
            assert one._modules._settled == []
            np.testing.assert_array_equal(one.greedy(seen), chosen)


def test_a_learners_object_is_never_settled():
    kind = load_algorithm("ppo")
    learner = kind(kind.Settings(), SPACES["discrete"], seed=0, learns=True)
    learner.begin_rollout(np.random.default_rng(0))
    assert learner._modules._settled == []


def test_a_network_of_another_precision_is_refused_though_it_holds_the_same_parameters():
    algorithm = executor("ppo", "discrete", {})
    algorithm.weights()
    algorithm.actor.double()
    with pytest.raises(ValueError, match="expected the parameters and buffers that build made"):
        algorithm.weights()
