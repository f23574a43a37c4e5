"""A run is killed and gone on with, again and again, and comes to the weights of one that nobody killed."""

import catalogue  # noqa: F401 - finds the modules beside it
import kills
import pytest
from fault_runs import Case, Row


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_loses_at_most_an_interval_and_no_bit(tmp_path):
    case = Case(Row("X2", "", ""), 0, "hour", tmp_path)
    try:
        done, _ = kills.play(case, 20)
    finally:
        case.close()
    assert case.failures == []
    assert sum(done.values()) == 20
