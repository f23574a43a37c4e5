"""Importance weights of replayed rows."""

import pytest
import torch

from mlxe_async.maths import correction


@pytest.mark.long
def test_the_ratio_is_that_of_the_probabilities_and_has_no_gradient():
    now = torch.tensor([0.2, 0.5]).log().requires_grad_()
    result = correction.ratio(now, torch.tensor([0.4, 0.25]).log())
    torch.testing.assert_close(result, torch.tensor([0.5, 2.0]))
    assert not result.requires_grad


def test_impossible_rows_give_finite_ratios():
    result = correction.ratio(torch.tensor([-1e9, 0.0]), torch.tensor([0.0, -1e9]))
    assert torch.isfinite(result).all()


def test_clipping_bounds_only_from_above():
    assert correction.clipped(torch.tensor([0.1, 1.0, 7.0]), 2.0).tolist() == pytest.approx([0.1, 1.0, 2.0])


def test_the_effective_share_is_one_for_equal_weights_and_small_if_one_rules():
    assert float(correction.effective_share(torch.full((10,), 0.3))) == pytest.approx(1.0)
    assert float(correction.effective_share(torch.tensor([1.0] + [0.0] * 9))) == pytest.approx(0.1)


def test_different_shapes_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        correction.ratio(torch.zeros(3), torch.zeros(3, 1))


def test_the_approximate_kl_is_zero_without_change_and_otherwise_what_the_sum_over_actions_gives():
    behaviour, policy = torch.tensor([0.7, 0.3]), torch.tensor([0.4, 0.6])
    drawn = torch.tensor([0] * 7 + [1] * 3)  # each action as often as the behaviour chooses it
    exact = (behaviour * (behaviour / policy).log()).sum()
    torch.testing.assert_close(correction.approximate_kl(policy.log()[drawn], behaviour.log()[drawn]), exact)
    assert correction.approximate_kl(policy.log(), policy.log()) == 0


def test_exponents_are_limited_to_twenty_on_both_sides():
    now, then = torch.tensor([19.0, 21.0, 99.0, -19.0, -21.0, -99.0]), torch.zeros(6)
    expected = torch.tensor([19.0, 20.0, 20.0, -19.0, -20.0, -20.0]).exp()
    torch.testing.assert_close(correction.ratio(now, then), expected, rtol=1e-5, atol=0)


def test_weights_are_clipped_at_one_where_nothing_else_is_said():
    assert correction.clipped(torch.tensor([0.5, 1.5])).tolist() == [0.5, 1.0]


def test_the_effective_share_of_weights_of_zero_is_zero_and_of_small_ones_their_own():
    assert correction.effective_share(torch.zeros(4)) == 0
    assert float(correction.effective_share(torch.full((1,), 1.1e-6))) == pytest.approx(1.0)


@pytest.mark.parametrize(("kl", "is_it"), [(0.9, False), (1.0, False), (1.1, True)])
def test_a_divergence_is_beyond_the_largest_one_only_above_it(kl, is_it):
    assert correction.is_beyond(torch.tensor(kl), 1.0) is is_it
    assert correction.is_beyond(kl, 1.0) is is_it


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.0, 2.0), (1.9, 2.0), (2.0, 4.0), (2.1, 4.0), (3.0, 4.0), (4.4, 4.0), (4.5, 4.0), (4.6, 8.0), (9.0, 8.0)],
)
def test_the_coefficient_is_halved_below_two_thirds_of_the_target_and_doubled_above_one_and_a_half(kl, expected):
    """PPO, Schulman et al. 2017, section 4: target 3, thus 2 and 4.5."""
    assert correction.kl_coefficient(4.0, kl, 3.0) == expected
