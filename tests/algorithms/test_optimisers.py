"""The flat optimisers take the very steps of torch's own classes, without importing the compiler."""

import subprocess
import sys

import pytest
import torch

from mlxe_async.optimisers import FlatOptimiser

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


def test_a_step_does_not_import_the_compiler():
    code = """
import sys, torch
from mlxe_async.optimisers import FlatOptimiser
for kind in ("radam", "adam"):
    FlatOptimiser(kind, torch.zeros(3), torch.ones(3), eps=1e-7).step(0.1)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
