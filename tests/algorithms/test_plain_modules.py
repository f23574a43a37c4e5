"""A policy's network as a plain torch module says what the policy does."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.algorithms import Acting, load_algorithm
from mlxe_async.rows import Spaces

SPACES = Spaces((4,), actions=3)
PICTURES = Spaces((2, 36, 40), "|u1", actions=3)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("name", "settings", "spaces"),
    [
        ("ppo", {"policy": (5,), "value": (6, 3), "common": (7,)}, SPACES),
        ("ppo", {"normalise": False, "activation": "relu", "input_scale": (0.5, 1.0, 2.0, 3.0)}, SPACES),
        ("ppo", {"body": "nature", "common": (16,), "policy": (), "value": (), "normalise": False}, PICTURES),
        ("mlxe", {"noisy": True, "layer_norm": True}, SPACES),
        ("mlxe", {"normalise": True, "value_scale": "categorical"}, SPACES),
        ("dqn", {"layer_norm": True}, SPACES),
        ("dqn", {"layer_norm": False, "layers": ()}, SPACES),
        ("rainbow", {}, SPACES),
    ],
)
def test_the_module_of_a_built_in_algorithm_says_what_it_acts_by(name, settings, spaces):
    cls = load_algorithm(name)
    algorithm = cls(cls.Settings.model_validate(settings), spaces, seed=1, learns=False)
    obs = RNG.normal(0, 4, (20, *spaces.observation_shape)).astype(np.float32)
    if spaces is PICTURES:
        obs = RNG.integers(0, 256, (20, *spaces.observation_shape), np.uint8)
    with torch.no_grad():
        for module in (one for one in vars(algorithm).values() if isinstance(one, nn.Module)):
            for leaf in module.parameters():
                leaf += 0.1 * torch.from_numpy(RNG.normal(size=leaf.shape).astype(np.float32))
    see = algorithm.see if name == "ppo" else algorithm.network.see
    if see.normaliser is not None:
        see.count(3 * obs + 1)
    if name in ("rainbow", "mlxe"):
        algorithm.act(obs, RNG, Acting())  # under noise
    module = algorithm.module()
    assert isinstance(module, nn.Module)
    found, best = module(torch.from_numpy(obs)), algorithm.greedy(obs).tolist()
    if name == "ppo":
        np.testing.assert_allclose(found["critic"][:, 0].detach(), algorithm.value_of(obs), rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(found["actor"].detach(), algorithm.policy(obs).logits, rtol=2e-4, atol=2e-4)
    scores = algorithm.scores(found.detach()) if name in ("dqn", "rainbow") else found["actor"].detach()
    assert scores.argmax(-1).tolist() == best
    assert np.ptp(scores.numpy()) > 0.1
    assert sum(parameter.numel() for parameter in module.parameters()) <= len(algorithm.weights())
