"""A flat vector holds all tensors exactly, wherever their numbers lie by then."""

import itertools
import math

import numpy as np
import pytest
import torch

from mlxe_async.algorithms.state.flat_form import FlatForm, slots

torch.manual_seed(0)
TENSORS = {
    "float32": torch.randn(3, 4),
    "by inputs": torch.randn(4, 3).T,
    "a parameter": torch.nn.Parameter(torch.randn(5)),
    "float64": torch.randn(2, 3, dtype=torch.float64),
    "float64 by inputs": torch.randn(2, 3, dtype=torch.float64).T,
    "no dimension": torch.tensor(1e-300, dtype=torch.float64),
    "bfloat16": torch.randn(6).bfloat16(),
    "float16": torch.randn(6).half(),
    "int64": torch.tensor([2**62 + 1, -3]),
    "int32": torch.tensor([2**31 - 1, -5], dtype=torch.int32),
    "odd bytes": torch.tensor([1, 255, 7], dtype=torch.uint8),
    "truth": torch.tensor([True, False, True]),
    "complex": torch.randn(3, dtype=torch.complex64),
    "none": torch.zeros(0, 3),
}


def form_of(*tensors):
    ends = itertools.accumulate((math.prod(slots(one)) for one in tensors), initial=0)
    return FlatForm(tensors, [slice(*pair) for pair in itertools.pairwise(ends)])


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_bit_for_bit(name):
    tensor = TENSORS[name]
    again = torch.nn.Parameter(torch.zeros_like(tensor)) if tensor.requires_grad else torch.zeros_like(tensor)
    flat = form_of(TENSORS["float32"], tensor).packed()
    assert flat.dtype == np.float32
    with torch.no_grad():
        form_of(torch.zeros(3, 4), again).load(flat)
    assert torch.equal(again, tensor)


@pytest.mark.parametrize("name", ["float32", "float64", "a parameter"])
def test_numbers_that_lie_elsewhere_by_then_are_found(name):
    tensor = TENSORS[name].detach().clone()
    form = form_of(tensor)
    before = form.packed()
    tensor.data = tensor.data + 1
    changed = form.packed()
    assert (changed != before).any()
    with torch.no_grad():
        form.load(before)
    np.testing.assert_array_equal(form.packed(), before)


def test_a_square_that_is_turned_in_its_place_is_told_as_it_is_now():
    tensor = torch.arange(4.0).reshape(2, 2)
    form = form_of(tensor)
    form.packed()
    tensor.data = tensor.data.T
    assert form.packed().tolist() == [0, 2, 1, 3]
    form.load(np.arange(4, dtype=np.float32))
    assert tensor.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_doubles_that_are_not_finite_are_no_number(value):
    tensor = torch.tensor([1.0, value], dtype=torch.float64)
    assert np.isnan(form_of(tensor).packed()).all()


def test_another_shape_or_type_is_noticed():
    module = torch.nn.Linear(2, 3)
    form = form_of(module.weight)
    assert form.hold()
    module.weight.data = module.weight.data.double()
    assert not form.hold()


def test_nothing_is_one_number():
    form = FlatForm([], [slice(0, 1)])
    assert form.packed().tolist() == [0]
    form.load(form.packed())
