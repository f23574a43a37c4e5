"""What is done to a gradient before an optimiser sees it."""

from types import SimpleNamespace

import pytest
import torch

from mlxe_async.maths.gradients import clip_grad_norm_


def test_a_long_gradient_is_cut_to_the_norm_and_keeps_its_direction():
    gradient = torch.tensor([3.0, -4.0])
    assert clip_grad_norm_(gradient, 1.0) == pytest.approx(5.0)
    torch.testing.assert_close(gradient, torch.tensor([0.6, -0.8]))


@pytest.mark.parametrize("longest", [0.0, 5.5])
def test_a_short_gradient_or_no_bound_changes_nothing(longest):
    gradient = torch.tensor([3.0, -4.0])
    clip_grad_norm_(gradient, longest)
    assert gradient.tolist() == [3.0, -4.0]


def test_a_gradient_of_zero_stays_zero():
    gradient = torch.zeros(3)
    assert clip_grad_norm_(gradient, 0.5) == 0
    assert gradient.tolist() == [0, 0, 0]


class OnGPU(torch.Tensor):
    """Numbers of the CPU that say they are elsewhere, and whose reading would make the host wait."""

    device = property(lambda self: SimpleNamespace(type="cuda"))

    def item(self):
        raise AssertionError("the host waited for the GPU")


@pytest.mark.parametrize(("longest", "left"), [(1.0, [0.6, -0.8]), (5.5, [3.0, -4.0]), (0.0, [3.0, -4.0])])
def test_a_gpu_is_not_waited_for_and_shortens_alike(longest, left):
    gradient = torch.tensor([3.0, -4.0]).as_subclass(OnGPU)
    norm = clip_grad_norm_(gradient, longest).as_subclass(torch.Tensor)
    assert norm == 5
    torch.testing.assert_close(gradient.as_subclass(torch.Tensor), torch.tensor(left))


def test_a_gpu_leaves_a_gradient_of_zero_or_nearly_zero_as_it_is():
    for numbers in ([0.0, 0.0], [3e-13, -4e-13]):
        gradient = torch.tensor(numbers, dtype=torch.float64).as_subclass(OnGPU)
        clip_grad_norm_(gradient, 0.5)
        assert gradient.tolist() == numbers
