"""Several versions are evaluated as one where all of what acts can be: the same actions, to the last bit."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.algorithms import load_algorithm
from mlxe_async.algorithms.ppo import PPO
from mlxe_async.networks.bodies import Body
from mlxe_async.networks.by_numpy import KINDS
from mlxe_async.networks.dense import Dense, dense
from mlxe_async.networks.several import settled_as_one
from mlxe_async.rows import Spaces

NUMBERS = Spaces((4,), action_shape=(2,), action_low=(-1.0, -2.0), action_high=(1.0, 2.0))
CHOICES = Spaces((4,), actions=3)
AS_ONE = [
    ("mlxe", CHOICES, {"common": [64, 64], "input_scale": [0.5, 0.5, 5.0, 0.5]}),
    ("mlxe", CHOICES, {"common": [], "noisy": True}),
    ("mlxe", CHOICES, {"activation": "tanh", "layer_norm": True, "normalise": True}),
    ("mlxe", Spaces((2, 2), actions=3), {"common": [16]}),
    ("ppo", CHOICES, {"normalise": True}),
    ("ppo", CHOICES, {"normalise": False}),
    ("a2c", CHOICES, {}),
    ("impala", CHOICES, {}),
    ("reinforce", CHOICES, {}),
]
ONE_BY_ONE = [
    ("dqn", CHOICES, {"noisy": True}),  # publishes its epsilon beside its layers
    ("ppo", NUMBERS, {}),  # publishes deviations beside its layers
    ("sac", NUMBERS, {"normalise": True}),
    ("td3", NUMBERS, {}),
    ("dqn", Spaces((1, 12, 12), actions=3, observation_dtype="|u1"), {"body": "small"}),
]


def made(name, spaces, settings, seed=0):
    kind = load_algorithm(name)
    return kind(kind.Settings(**settings), spaces, seed=seed, learns=False)


def versions_of(algorithm, seeds):
    """Vectors (V, P) of fresh objects, whose moments say something where numbers are normalised."""
    flats = []
    for seed in seeds:
        one = type(algorithm)(algorithm.settings, algorithm.spaces, seed=seed, learns=False)
        for value in vars(one).values():
            for body in value.modules() if isinstance(value, nn.Module) else ():
                if isinstance(body, Body) and body.normaliser is not None:
                    body.count(np.random.default_rng(seed).normal(seed, 2, size=(50, 4)).astype(np.float32))
        flats.append(one.weights())
    return np.stack(flats)


def observations(spaces, versions, rows):
    rng, shape = np.random.default_rng(versions), (versions, rows, *spaces.observation_shape)
    if spaces.observation_dtype == "|u1":
        return rng.integers(0, 256, shape, np.uint8)
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("name", "spaces", "settings"), [*AS_ONE, *ONE_BY_ONE])
def test_together_they_choose_what_each_chooses(name, spaces, settings):
    algorithm = made(name, spaces, settings)
    for seeds in ((1, 2, 3), (4,), (5, 6)):
        flats, obs = versions_of(algorithm, seeds), observations(spaces, len(seeds), 20)
        chosen = algorithm.greedy_many(flats, obs)
        assert algorithm._modules.versions.group(flats).are_one == ((name, spaces, settings) in AS_ONE)
        for flat, seen, found in zip(flats, obs, chosen, strict=True):
            algorithm.load(flat)
            np.testing.assert_array_equal(algorithm.greedy(seen), found)
        np.testing.assert_array_equal(algorithm.greedy_many(flats, obs), chosen)


def test_observations_of_fewer_versions_are_refused():
    algorithm = made("dqn", CHOICES, {})
    with pytest.raises(ValueError, match="shorter"):
        algorithm.greedy_many(versions_of(algorithm, (1, 2)), observations(CHOICES, 1, 3))


def test_an_own_class_is_asked_version_by_version():
    class Mine(PPO):
        """Might look at anything in its policy."""

    algorithm = Mine(Mine.Settings(), CHOICES, seed=0, learns=False)
    algorithm.greedy_many(flats := versions_of(algorithm, (1, 2)), observations(CHOICES, 2, 3))
    assert algorithm._modules.versions.group(flats).are_one is False


def test_a_hook_on_a_version_is_asked_version_by_version():
    algorithm, heard = made("mlxe", CHOICES, {}), []
    obs = observations(CHOICES, 2, 3)
    algorithm.greedy_many(flats := versions_of(algorithm, (1, 2)), obs)
    second = algorithm._modules.versions.group(flats).objects[1]
    second.network.actor.register_forward_hook(lambda *_: heard.append(1))
    algorithm.greedy_many(flats.copy(), obs)
    algorithm.greedy_many(again := flats.copy(), obs)  # objects of the group that was asked first
    assert algorithm._modules.versions.group(again).are_one is False
    assert heard


def test_two_groups_that_take_turns_are_prepared_once_and_a_third_takes_the_place_of_the_older():
    algorithm = made("mlxe", CHOICES, {})
    groups = [versions_of(algorithm, seeds) for seeds in ((1, 2), (3, 4, 5), (6,))]
    first, second, third = ([*algorithm._modules.versions.group(flats).objects] for flats in groups)
    assert [len(first), len(second), len(third)] == [2, 3, 2]
    assert third == first  # one of whose objects is enough
    for flats, seen in zip(groups, (first, second, third), strict=True):
        obs = observations(CHOICES, len(flats), 6)
        chosen = [algorithm.greedy_many(one, obs) for one in (flats, flats.copy())]
        np.testing.assert_array_equal(*chosen)
        assert {*seen} <= {*first, *second}


def test_a_group_that_could_not_be_prepared_is_not_taken_for_one_that_was():
    algorithm = made("mlxe", CHOICES, {})
    flats = versions_of(algorithm, (1, 2))
    short = flats[:, :-1].copy()
    for _ in range(2):
        with pytest.raises(ValueError, match="loading: expected"):
            algorithm.greedy_many(short, observations(CHOICES, 2, 3))
    assert algorithm.greedy_many(flats, observations(CHOICES, 2, 3)).shape == (2, 3)


def settled(*networks):
    for one in networks:
        one.settle()
    return networks


def test_layers_that_act_as_several_are_themselves_again_when_they_are_no_longer_settled():
    one, two = settled(dense(3, [5], 2), dense(3, [5], 2))
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    alone = [network(rows) for network, rows in zip((one, two), x, strict=True)]
    assert one.settle_as((one, two))
    np.testing.assert_array_equal(one(x), alone)
    one.unsettle()
    np.testing.assert_array_equal(one(x[0]), alone[0])


@pytest.mark.parametrize("kind", [one for one in KINDS if one not in (nn.LSTM, nn.GRU, nn.Sequential)])
def test_each_kind_of_layer_is_the_same_or_declines(kind):
    """The input is no new array: what happens in place must not happen to it."""
    sizes = {"Linear": (4, 4), "NoisyLinear": (4, 4), "LayerNorm": (4,)}.get(kind.__name__, ())
    one, two = settled(Dense(kind(*sizes), nn.Linear(4, 2)), Dense(kind(*sizes), nn.Linear(4, 2)))
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    before, alone = x.copy(), [network(rows) for network, rows in zip((one, two), x, strict=True)]
    if kind in (nn.LayerNorm, nn.Flatten):  # it has factors of its own; it takes the versions for rows
        assert not one.settle_as((one, two))
        np.testing.assert_array_equal(one(x[0]), alone[0])
    else:
        assert one.settle_as((one, two))
        np.testing.assert_array_equal(one(x), alone)
    np.testing.assert_array_equal(x, before)


def test_where_one_network_cannot_the_others_go_on_as_they_were():
    able, unable = [settled(dense(4, [3], 2), Dense(nn.Flatten(), nn.Linear(4, 2))) for _ in range(2)]
    x = np.ones((5, 4), np.float32)
    alone = able[0](x)
    assert not settled_as_one([able, unable], able[0].parameters())
    np.testing.assert_array_equal(able[0](x), alone)


def test_a_tensor_outside_of_the_layers_is_noticed():
    one, two = settled(dense(4, [3], 2)), settled(dense(4, [3], 2))
    assert settled_as_one([one, two], [*one[0].parameters()])
    assert not settled_as_one([one, two], [*one[0].parameters(), torch.zeros(1)])


def test_nothing_is_settled_as_nothing():
    assert settled_as_one([(), ()], []) is False
