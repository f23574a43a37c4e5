"""Priorities and probabilities in numbers."""

import numpy as np
import pytest

from mlxe_async.maths import priorities


def test_td_priorities_have_a_floor_and_a_ceiling():
    np.testing.assert_allclose(priorities.td_priority(np.array([0.0, -0.5, 3.0])), [0.01, 0.51, 1.0])


def test_risk_puts_the_lowest_return_first():
    np.testing.assert_allclose(priorities.risk_priority(np.array([-10.0, 0.0, 10.0])), [1.01, 0.51, 0.01])


def test_risk_of_equal_returns_is_equal_and_finite():
    assert len(set(priorities.risk_priority(np.full(4, 3.0)))) == 1


def test_age_puts_the_newest_first():
    np.testing.assert_array_equal(priorities.age_priority(np.array([1, 1, 4])), [4, 4, 1])


def test_probabilities_average_the_normalised_factors_and_apply_the_exponent():
    first, second = np.array([1.0, 3.0]), np.array([1.0, 1.0])
    mean = np.array([0.375, 0.625])
    np.testing.assert_allclose(priorities.probabilities([first, second], 1.0), mean)
    np.testing.assert_allclose(priorities.probabilities([first, second], 0.5), np.sqrt(mean) / np.sqrt(mean).sum())
    np.testing.assert_allclose(priorities.probabilities([first, second], 0.0), [0.5, 0.5])


@pytest.mark.parametrize("factors", [[], [np.zeros(3)], [np.array([1.0, -1.0, 1.0])], [np.array([1.0, np.nan])]])
def test_factors_that_give_no_probabilities_are_refused(factors):
    with pytest.raises(ValueError, match="probabilities"):
        priorities.probabilities(factors, 1.0)


def test_risk_of_returns_that_differ_by_less_than_one_is_told_apart():
    np.testing.assert_allclose(priorities.risk_priority(np.array([0.0, 0.25, 0.5])), [1.01, 0.51, 0.01])
    np.testing.assert_allclose(priorities.risk_priority(np.array([3.0, 3.0])), [1.01, 1.01])


def test_factors_may_be_small_and_leave_rows_out():
    found = priorities.probabilities([np.array([0.0, 0.1, 0.3]), np.array([2.0, 1.0, 1.0])], 1.0)
    np.testing.assert_allclose(found, [0.25, 0.25, 0.5])


def test_a_factor_of_infinities_is_refused():
    with pytest.raises(ValueError, match="probabilities"):
        priorities.probabilities([np.array([1.0, np.inf])], 1.0)


def test_td_priorities_take_other_bounds():
    np.testing.assert_allclose(priorities.td_priority(np.array([0.0, -2.0, 9.0]), 0.5, 3.0), [0.5, 2.5, 3.0])
