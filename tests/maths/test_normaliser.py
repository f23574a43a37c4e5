"""The moments of all observations, however they come, and what the network is shown."""

import functools

import numpy as np
import pytest
from groups import Others
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.maths import together as learning
from mlxe_async.maths.normaliser import Moments, joined, merge, normalise, nothing
from mlxe_async.memory.moments import mean_and_variance, pooled

NOTHING = Moments(np.zeros(3), np.ones(3), 0)


def test_moments_do_not_depend_on_how_the_rows_came():
    rows = np.random.default_rng(0).normal([1e3, 0, -5], [1e-2, 1, 30], (1000, 3))
    pieces = NOTHING
    for piece in np.split(rows, [1, 10, 300, 300]):
        pieces = merge(pieces, piece)
    np.testing.assert_allclose(pieces.mean, rows.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(pieces.variance, rows.var(0), rtol=1e-6)
    assert pieces.rows == 1000


def test_moments_of_two_rows_in_numbers():
    moments = merge(NOTHING, np.array([[0.0, 2.0, 7.0], [4.0, 2.0, 9.0]]))
    assert moments.mean.tolist() == [2, 2, 8]
    assert moments.variance.tolist() == [4, 0, 1]


def test_without_rows_nothing_changes():
    assert merge(NOTHING, np.empty((0, 3))) is NOTHING


def test_where_several_workers_learn_the_moments_are_those_of_all_their_rows():
    parts = np.split(np.random.default_rng(0).normal([5.0, -3.0, 0.0], [2.0, 0.1, 1.0], (12, 3)), [4, 9])
    second, nobodys = merge(NOTHING, parts[1]), nothing(3)
    others = [np.concatenate(one, axis=None) for one in (second, nobodys)]
    with learning.learning_in(Others(*others)):
        found = merge(merge(NOTHING, parts[2]), parts[0])
        with learning.alone():
            assert merge(NOTHING, parts[0]).rows == 4
    expected = functools.reduce(merge, [parts[2], parts[1], parts[0], parts[1]], NOTHING)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-9)
    assert found.rows == expected.rows == 17


def test_a_worker_without_rows_learns_the_moments_of_the_others():
    rows = np.array([[0.0, 2.0, 7.0], [4.0, 2.0, 9.0]])
    with learning.learning_in(Others(np.concatenate(merge(NOTHING, rows), axis=None))):
        found = merge(NOTHING, np.empty((0, 3)))
    assert (found.mean.tolist(), found.variance.tolist(), found.rows) == ([2, 2, 8], [4, 0, 1], 2)


def test_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match="expected rows"):
        merge(NOTHING, np.zeros((5, 2)))


def test_what_is_shown_has_deviation_one_and_never_leaves_ten():
    rows = np.random.default_rng(0).normal([5.0, -3.0, 0.0], [2.0, 0.1, 0.0], (5000, 3))
    moments = merge(NOTHING, rows)
    shown = normalise(rows, moments.mean, moments.variance)
    assert shown.dtype == np.float32
    np.testing.assert_allclose(shown.std(0), [1, 1, 0], atol=1e-4)
    assert normalise(np.array([[5.0, 100.0, 1.0]]), moments.mean, moments.variance)[0].tolist() == pytest.approx(
        [0, 10, 10], abs=0.1
    )


def test_what_is_shown_is_bounded_on_both_sides_and_a_variance_of_zero_harms_nothing():
    mean, variance = np.array([1.0, 0.0, 2.0]), np.array([4.0, 1.0, 0.0])
    shown = normalise(np.array([[-99.0, 99.0, 2.0], [5.0, -3.0, 2.0005], [20.9, -9.9, 1.9995]]), mean, variance)
    np.testing.assert_allclose(shown, [[-10, 10, 0], [2, -3, 5], [9.95, -9.9, -5]], rtol=1e-4)


def test_the_moments_of_no_rows_show_observations_as_they_are():
    moments = nothing(3)
    obs = np.array([[1.0, -2.0, 3.0]], np.float32)
    np.testing.assert_allclose(normalise(obs, moments.mean, moments.variance), obs, rtol=1e-6)
    assert moments.rows == 0


def test_rows_that_are_no_table_are_refused():
    with pytest.raises(ValueError, match="expected rows"):
        merge(NOTHING, np.zeros(3))


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 400), min_size=1, max_size=9))
def test_filters_that_counted_apart_make_the_one_that_counted_all(seed, sizes):
    rng = np.random.default_rng(seed)
    rows = rng.normal([1e3, 0, -5], [1e-2, 1, 30], (sum(sizes), 3))
    apart = [merge(nothing(3), piece) for piece in np.split(rows, np.cumsum(sizes)[:-1])]
    together, whole = functools.reduce(joined, apart), merge(nothing(3), rows)
    np.testing.assert_allclose(together.mean, whole.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(together.variance, whole.variance, rtol=1e-9, atol=1e-9)
    assert together.rows == whole.rows == sum(sizes)
    # So do those that a replay memory keeps for each lane.
    sets = [np.concatenate([[one.rows], one.mean, one.variance * one.rows]) for one in apart]
    mean, variance, count = mean_and_variance(pooled(np.array(sets)))
    np.testing.assert_allclose(mean, whole.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(variance, whole.variance, rtol=1e-9, atol=1e-9)
    assert count == whole.rows


def test_two_sets_together_in_numbers_and_nothing_with_nothing():
    one, other = Moments(np.array([1.0]), np.array([4.0]), 2), Moments(np.array([4.0]), np.array([1.0]), 4)
    together = joined(one, other)
    assert (together.mean.item(), together.rows) == (3.0, 6)
    assert together.variance.item() == pytest.approx((2 * 4 + 4 * 1 + 2 * 4 / 6 * 9) / 6)
    assert joined(nothing(1), nothing(1)).rows == 0
