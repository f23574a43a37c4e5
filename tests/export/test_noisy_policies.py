"""Policies that explore by noise in their weights draw it anew as they do in training, also outside of a run."""

import numpy as np
import pytest
from policies_to_export import policy_of

from mlxe_async.roles.trials import Sampled


@pytest.mark.parametrize(("name", "more"), [("dqn", {"noisy": True}), ("rainbow", {})])
def test_one_observation_is_answered_by_many_networks(name, more):
    policy = policy_of({"env": "CartPole-v1"}, name=name, noise_sigma=3.0, **more)
    obs, rng = np.array([0.02, 0.01, -0.03, 0.02], np.float32), np.random.default_rng(1)
    chosen = [int(policy.act(obs, rng=rng)) for _ in range(60)]
    assert 0 < sum(chosen) < 60
    sampled = Sampled(policy.sampled, 3, policy._acting)
    flats = policy.flat[None]
    found = [int(sampled.greedy_many(flats, obs[None, None])[0, 0]) for _ in range(60)]
    assert 0 < sum(found) < 60
    again = Sampled(policy.sampled, 3, policy._acting)
    flats = flats.copy()
    assert [int(again.greedy_many(flats, obs[None, None])[0, 0]) for _ in range(60)] == found
