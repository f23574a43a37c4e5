"""Thinned curves keep every peak, rates keep the work, and ages count rows back from the newest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.analysis.report.thinning import BUCKETS, ages, curve_of, finite, rates, smoothed, thinned


def test_one_peak_among_a_million_values_is_in_the_band():
    x = np.arange(1_000_000.0)
    y = np.zeros(1_000_000)
    y[777_777], y[222_222] = 1000.0, -1000.0
    curve = thinned(x, y, 1e6)
    assert len(curve.x) == BUCKETS
    assert curve.high.max() == 1000
    assert curve.low.min() == -1000
    assert curve.x[curve.high.argmax()] == pytest.approx(777_777, abs=1e6 / BUCKETS)


def test_few_values_are_kept_as_they_are():
    x = np.array([1.0, 5.0, 9.0])
    curve = thinned(x, x * 2, 100.0)
    assert curve.x.tolist() == x.tolist()
    assert curve.y.tolist() == [2, 10, 18]
    assert curve.low is None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e9, 1e9)), min_size=1, max_size=600))
def test_extremes_and_ends_of_any_curve_are_those_of_its_values(points):
    x, y = finite(*np.array(points, dtype=np.float64).T)
    curve = thinned(x, y, float(x[-1]))
    assert (np.diff(curve.x) >= 0).all()
    assert len(curve.x) <= max(BUCKETS, 1)
    high = curve.y if curve.high is None else curve.high
    low = curve.y if curve.low is None else curve.low
    assert high.max() == y.max()
    assert low.min() == y.min()


def test_what_is_not_known_is_left_out_and_the_rest_is_in_order():
    x, y = finite(np.array([3.0, np.nan, 1.0, 2.0]), np.array([30.0, 1.0, np.inf, 20.0]))
    assert x.tolist() == [2, 3]
    assert y.tolist() == [20, 30]


def test_the_mean_goes_over_a_twentieth_of_the_values_and_at_most_a_hundred():
    assert smoothed(np.arange(10.0)).tolist() == list(range(10))
    assert smoothed(np.arange(100.0))[50] == 48
    assert smoothed(np.arange(10_000.0))[9999] == pytest.approx(9949.5)
    assert len(smoothed(np.empty(0))) == 0


def test_the_curve_of_several_runs_is_their_mean_and_lies_in_its_band():
    x = np.linspace(0, 100, 50)
    curve = curve_of([(x, np.full(50, value)) for value in (1.0, 2.0, 6.0)], 100.0)
    assert curve.y == pytest.approx(3.0)
    assert (curve.low <= curve.y).all()
    assert (curve.high >= curve.y).all()
    assert curve.low.min() >= 1
    assert curve.high.max() <= 6


def test_after_its_end_a_run_counts_with_its_last_value():
    short, long = (np.array([0.0, 10.0]), np.array([4.0, 4.0])), (np.array([0.0, 100.0]), np.array([0.0, 0.0]))
    assert curve_of([short, long], 100.0).y[-1] == 2


def test_runs_without_a_value_have_no_curve():
    nothing = np.empty(0), np.empty(0)
    assert curve_of([nothing, nothing], 10.0) is None
    assert curve_of([nothing, (np.array([1.0]), np.array([2.0]))], 10.0).y.tolist() == [2]


@given(st.lists(st.tuples(st.floats(0, 90), st.floats(0, 10), st.floats(0, 1e6)), min_size=1, max_size=50))
def test_rates_add_up_to_the_work_that_was_done(phases):
    start, span, amount = np.array(phases).T
    edges = np.linspace(0.0, 101.0, 37)
    found = rates(start, start + span, amount, edges)
    assert (found >= 0).all()
    assert float((found * np.diff(edges)).sum()) == pytest.approx(float(amount.sum()), rel=1e-6, abs=1e-3)


def test_the_work_of_a_phase_is_spread_over_its_time():
    found = rates(np.array([1.0]), np.array([3.0]), np.array([100.0]), np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert found.tolist() == pytest.approx([0, 50, 50, 0])


def test_the_oldest_of_ten_rows_came_in_with_the_first_of_the_last_ten():
    taken, rows = np.arange(1.0, 11.0), np.full(10, 5.0)  # five rows a second
    found = ages(taken, rows, np.array([10.0, 10.0, 2.0]), np.array([10.0, 5.0, 50.0]))
    assert found[:2].tolist() == [2, 1]
    assert np.isnan(found[2])  # more rows than the log tells of
    assert np.isnan(ages(np.empty(0), np.empty(0), np.array([1.0]), np.array([1.0]))).all()
