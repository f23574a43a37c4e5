"""A series keeps ends and means of its values in bounded memory, however many there are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.cli.dashboard.series import FEW, MOST_BUCKETS, Series

values = st.lists(st.floats(-1e18, 1e18), min_size=1, max_size=3000)


def filled(numbers):
    series = Series()
    for place, value in enumerate(numbers):
        series.add(10.0 * place, float(place), value)
    return series


@given(values)
def test_no_peak_is_lost_and_the_mean_stays(numbers):
    series = filled(numbers)
    rows = np.array(series.rows())
    assert len(rows) <= MOST_BUCKETS
    assert rows[:, 3].min() == min(numbers)
    assert rows[:, 4].max() == max(numbers)
    counts = np.array([bucket[0] for bucket in series._buckets])
    assert counts.sum() == len(numbers)
    assert math.isclose((rows[:, 2] * counts).sum(), math.fsum(numbers), rel_tol=1e-6, abs_tol=1e6)


def test_a_hundred_thousand_values_take_as_many_buckets_as_a_thousand():
    series = filled(range(2**17))
    assert MOST_BUCKETS // 2 <= len(series.rows()) <= MOST_BUCKETS
    assert {bucket[0] for bucket in series._buckets[:-1]} == {2**17 / MOST_BUCKETS}


def test_few_values_are_points_and_many_have_a_band():
    few, many = filled(range(FEW)), filled(range(FEW + 1))
    assert few.curve("env_steps").low is None
    x, y = few.dots("env_steps")
    assert list(x) == [10.0 * place for place in range(FEW)]
    assert list(y) == list(range(FEW))
    assert many.dots("seconds") is None
    assert many.curve("seconds").low is not None


def test_a_curve_ascends_also_where_values_came_late():
    series = Series()
    for steps in (30.0, 10.0, 20.0):
        series.add(steps, 0.0, steps)
    curve = series.curve("env_steps")
    assert list(curve.x) == [10.0, 20.0, 30.0]
    assert list(curve.y) == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("across", ["env_steps", "seconds"])
def test_of_no_values_there_is_an_empty_curve(across):
    assert len(Series().curve(across).x) == 0
    assert Series().dots(across) is None
