"""The derivatives that the twins of SAC, TD3 and DDPG were made of, where they are easily wrong."""

from functools import partial

import numpy as np
import pytest
import torch
from made_rows import agent, batch
from proof import BOX, NEAR, distance, follow, take, update

from mlxe_async.algorithms import Clock
from mlxe_async.algorithms.distributions import TanhGaussian
from mlxe_async.algorithms.sac import LOG_STD
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.fast import continuous, updates
from mlxe_async.rows import Spaces

RNG = np.random.default_rng(3)
THREE = Spaces((3,), action_shape=(3,), action_low=(-1.0,) * 3, action_high=(1.0,) * 3)


@pytest.mark.parametrize("size", [1.0, 10.0, 40.0])
def test_a_squashed_gaussian_is_differentiated_also_beyond_the_bounds_of_its_deviation(size):
    scores = (size * RNG.normal(size=(200, 6))).astype(np.float32)
    scores[:4, 3] = (*LOG_STD, LOG_STD[0] - 1e-3, LOG_STD[1] + 1e-3)
    normal = RNG.normal(size=(200, 3)).astype(np.float32)
    by_action, by_log_prob = RNG.normal(size=(200, 3)).astype(np.float32), np.float32(0.3)
    leaf = torch.tensor(scores, requires_grad=True)
    mean, log_std = leaf.chunk(2, -1)
    action, log_prob = TanhGaussian(mean, log_std.clamp(*LOG_STD), THREE).rsample(torch.tensor(normal))
    (torch.tensor(by_action) * action + by_log_prob * log_prob[:, None] / 3).sum().backward()
    found = continuous.drawn(scores, normal)
    np.testing.assert_allclose(found.action, action.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.log_prob, log_prob.detach(), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(continuous.by_scores(found, by_action, by_log_prob), leaf.grad, rtol=1e-4, atol=1e-5)
    assert (~found.unbounded).any()


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_critics_that_say_the_same_share_the_gradient_as_torch_has_it(name):
    pair = []
    for _ in range(2):
        algorithm = agent(name, spaces=BOX, layers=[16, 12], critic_learning_rate=1e-30)
        for one, other in (algorithm.critics, algorithm.critic_targets):
            other.load_state_dict(one.state_dict())
        pair.append(algorithm)
    (fast, written), rows, taken, apart = pair, batch(pair[0], rows=64), [], []
    twin = updates(fast).twin
    update(fast, twin.update, rows, Clock(), lambda gradient, step: take(taken, gradient, step))
    update(
        written, partial(learned, written), rows, Clock(), lambda gradient, step: follow(taken, apart, gradient, step)
    )
    assert max(apart) <= NEAR


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
@pytest.mark.parametrize("rows", [1, 7, 1500])
def test_batches_of_any_size_are_learned_from(name, rows):
    pair = [agent(name, spaces=BOX, layers=[16, 12]) for _ in range(2)]
    way, made = updates(pair[0]), batch(pair[0], rows=max(rows, 4))
    made = {column: values[:rows] for column, values in made.items()}
    taken, apart = [], []
    update(pair[0], way.update, made, Clock(), lambda gradient, step: take(taken, gradient, step))
    update(
        pair[1], partial(learned, pair[1]), made, Clock(), lambda gradient, step: follow(taken, apart, gradient, step)
    )
    assert len(apart) == len(taken) == (3 if name == "sac" else 2)
    assert max(apart) <= NEAR


def test_discrete_actions_are_left_to_the_file():
    assert updates(agent("sac")).reason == "its actions are discrete"


@pytest.mark.parametrize("network", ["critics", "critic_targets", "actor_target"])
def test_a_hook_on_any_of_the_networks_leaves_it_to_torch(network):
    algorithm = agent("td3", spaces=BOX)
    [*getattr(algorithm, network).modules()][-1].register_forward_hook(lambda _module, _given, found: found)
    assert updates(algorithm).reason == "there are hooks on its networks"


def test_one_observation_and_one_entry_are_enough():
    spaces = Spaces((1,), action_shape=(1,), action_low=(-1.0,), action_high=(1.0,))
    assert max(distance(name, spaces, {"layers": [8]}, updates=2) for name in ("sac", "td3", "ddpg")) <= NEAR
