"""The flat optimisers take the very steps of torch's own classes, without importing the compiler."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from mlxe_async.networks.bodies import dense
from mlxe_async.optimisers import Adam, FlatOptimiser

CLASSES = {"radam": torch.optim.RAdam, "adam": torch.optim.Adam}


@pytest.mark.parametrize("kind", CLASSES)
def test_the_steps_are_those_of_torch(kind):
    start, gradients = torch.randn(50), torch.randn(20, 50)
    ours, gradient = start.clone(), torch.zeros(50)
    flat = FlatOptimiser(kind, ours, gradient, eps=1e-7)
    theirs = torch.nn.Parameter(start.clone())
    reference = CLASSES[kind]([theirs], lr=1.0, eps=1e-7, foreach=False)
    for number, one in enumerate(gradients, 1):
        rate = 0.1 / number
        gradient.copy_(one)
        flat.step(rate)
        theirs.grad = one.clone()
        reference.param_groups[0]["lr"] = rate
        reference.step()
        assert torch.allclose(ours, theirs.detach(), rtol=1e-5, atol=1e-7)
        assert flat.learning_rate == rate


@pytest.mark.long
def test_a_step_does_not_import_the_compiler():
    code = """
import sys, torch
from mlxe_async.optimisers import FlatOptimiser
for kind in ("radam", "adam"):
    FlatOptimiser(kind, torch.zeros(3), torch.ones(3), eps=1e-7).step(0.1)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


GRADIENTS = {
    "its own zero_grad": lambda _module, optimiser: optimiser.zero_grad(),
    "the module's, which takes the gradients away": lambda module, _optimiser: module.zero_grad(),
    "other tensors": lambda module, _optimiser: [
        setattr(one, "grad", (one * 0).detach()) for one in module.parameters()
    ],
}


@pytest.mark.parametrize("how", GRADIENTS)
@pytest.mark.parametrize("layers", [(), (5,)])
def test_adam_takes_the_steps_of_torchs_however_gradients_are_begun(how, layers):
    mine, theirs = (dense(3, layers, 2) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    one, other = Adam(mine.parameters(), 0.01), torch.optim.Adam(theirs.parameters(), 0.01)
    for number in range(6):
        x = torch.as_tensor(np.random.default_rng(number).normal(size=(9, 3)).astype(np.float32))
        GRADIENTS[how](mine, one)
        other.zero_grad()
        for module in (mine, theirs):
            module(x).square().mean().backward()
        one.step()
        other.step()
        for found, expected in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_adam_goes_on_with_weights_that_were_replaced_and_forgets_nothing_of_its_steps():
    mine, theirs = (dense(3, (), 2) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    one, other = Adam(mine.parameters(), 0.01), torch.optim.Adam(theirs.parameters(), 0.01)
    for number in range(4):
        for module, optimiser in ((mine, one), (theirs, other)):
            if number == 2:
                module[0].weight.data = torch.full((3, 2), 0.5).T
            optimiser.zero_grad()
            module(torch.ones(4, 3)).square().mean().backward()
            optimiser.step()
        torch.testing.assert_close(mine[0].weight, theirs[0].weight, rtol=1e-5, atol=1e-7)
    assert float(one.steps) == 4
    assert one.weights.data_ptr() == mine[0].weight.data_ptr()
