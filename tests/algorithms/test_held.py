"""What a module holds is looked for once, and again as soon as it holds something else."""

import gc

import pytest
import torch
from torch import nn

from mlxe_async.algorithms.state import held
from mlxe_async.algorithms.state.held import tensors_of


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.BatchNorm1d(3)), nn.Linear(3, 1))


def expected(module):
    return [*module.named_parameters(), *module.named_buffers()]


def names_and_places(tensors):
    return [(name, id(tensor)) for name, tensor in tensors]


def replaced(module):
    module[0].weight = nn.Parameter(torch.ones(3, 2))


def added(module):
    module[1].register_buffer("more", torch.ones(1))


def removed(module):
    del module[1][1]


def exchanged(module):
    module[2] = nn.Linear(3, 4)


def shared(module):
    module[2].weight = module[0].weight


def none(module):
    module[0].bias = None


@pytest.mark.parametrize("change", [replaced, added, removed, exchanged, shared, none], ids=lambda one: one.__name__)
def test_tensors_are_those_of_now_whatever_was_changed(change):
    module = network()
    before = tensors_of(module)
    assert names_and_places(before) == names_and_places(expected(module))
    assert tensors_of(module) is before
    change(module)
    assert names_and_places(tensors_of(module)) == names_and_places(expected(module))
    assert names_and_places(tensors_of(module)) != names_and_places(before)


def test_values_may_change_and_nothing_is_looked_for():
    module = network()
    before = tensors_of(module)
    with torch.no_grad():
        module[0].weight.add_(1)
    module[0].weight.data = torch.zeros(3, 2)
    assert tensors_of(module) is before


def test_a_module_that_is_gone_is_forgotten():
    gc.collect()
    known, module = len(held._KNOWN), network()
    tensors_of(module)
    assert len(held._KNOWN) == known + 1
    del module
    gc.collect()
    assert len(held._KNOWN) == known
