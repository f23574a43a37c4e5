"""What was measured, as plain numbers."""

import pytest
import torch

from mlxe_async.maths.metrics import as_floats, means


def test_tensors_and_numbers_become_floats_in_their_order():
    found = as_floats({"b": torch.tensor(2.5), "a": 3, "c": torch.tensor(1.0, dtype=torch.float64, requires_grad=True)})
    assert list(found.items()) == [("b", 2.5), ("a", 3.0), ("c", 1.0)]
    assert all(type(value) is float for value in found.values())
    assert as_floats({}) == {}


def test_the_mean_is_over_the_minibatches_that_have_it():
    found = means([{"loss": torch.tensor(1.0), "once": 7}, {"loss": 4.0}])
    assert found == {"loss": pytest.approx(2.5), "once": 7.0}
    assert means([]) == {}
