"""What is done to a gradient before an optimiser sees it."""

import pytest
import torch

from mlxe_async.maths.gradients import shorten


def test_a_long_gradient_is_cut_to_the_norm_and_keeps_its_direction():
    gradient = torch.tensor([3.0, -4.0])
    assert shorten(gradient, 1.0) == pytest.approx(5.0)
    torch.testing.assert_close(gradient, torch.tensor([0.6, -0.8]))


@pytest.mark.parametrize("longest", [0.0, 5.5])
def test_a_short_gradient_or_no_bound_changes_nothing(longest):
    gradient = torch.tensor([3.0, -4.0])
    shorten(gradient, longest)
    assert gradient.tolist() == [3.0, -4.0]


def test_a_gradient_of_zero_stays_zero():
    gradient = torch.zeros(3)
    assert shorten(gradient, 0.5) == 0
    assert gradient.tolist() == [0, 0, 0]
