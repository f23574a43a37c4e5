"""A policy's network as a plain torch module says what the policy does."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.algorithms import load_algorithm
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
    ],
)
def test_the_module_of_a_built_in_algorithm_says_what_it_acts_by(name, settings, spaces):
    cls = load_algorithm(name)
    algorithm = cls(cls.Settings.model_validate(settings), spaces, seed=1, learns=False)
    flat = RNG.normal(0, 0.3, sum(int(np.prod(shape)) for _, shape in algorithm.parameters)).astype(np.float32)
    names = [name for name, shape in algorithm.parameters for _ in range(int(np.prod(shape)))]
    flat = np.where([name == "normaliser.variance" for name in names], np.abs(flat) + 1e-3, flat).astype(np.float32)
    algorithm.load(flat)
    obs = RNG.normal(0, 4, (20, *spaces.observation_shape)).astype(np.float32)
    if spaces is PICTURES:
        obs = RNG.integers(0, 256, (20, *spaces.observation_shape), np.uint8)
    module = algorithm.module()
    assert isinstance(module, nn.Module)
    found = {head: out.detach().numpy() for head, out in module(torch.from_numpy(obs)).items()}
    flattened = obs.reshape(20, -1) if spaces is PICTURES else obs
    for head, outputs in found.items():
        expected = algorithm.outputs(flattened, "q" if name == "dqn" else head)[0]
        np.testing.assert_allclose(outputs, expected, rtol=2e-4, atol=2e-4)
    assert found["q" if name == "dqn" else "policy"].argmax(-1).tolist() == algorithm.greedy(obs).tolist()
    assert sum(parameter.numel() for parameter in module.parameters()) <= len(flat)
