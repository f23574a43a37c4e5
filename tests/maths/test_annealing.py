"""Quantities that change with the clock of the run."""

import pytest

from mlxe_async.maths.annealing import linear


def test_the_line_goes_from_first_to_last_and_stays_there():
    assert [linear(1.0, 0.2, 100, now) for now in (0, 50, 100, 10**9)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


@pytest.mark.parametrize(("over", "now"), [(0, 1), (10, -1)])
def test_clocks_that_cannot_be_are_refused(over, now):
    with pytest.raises(ValueError, match="over >= 1"):
        linear(1.0, 0.0, over, now)


def test_a_line_of_one_step_is_the_shortest():
    assert [linear(1.0, 0.2, 1, now) for now in (0, 1, 2)] == pytest.approx([1.0, 0.2, 0.2])
