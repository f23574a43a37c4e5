"""The moments of all observations, however they come, and what the network is shown."""

import numpy as np
import pytest

from mlxe_async.maths.normaliser import Moments, merge, normalise

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
