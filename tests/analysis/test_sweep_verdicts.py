"""What a sweep says of its best values beside the settings as they were."""

import math

import pytest

from mlxe_async.analysis.statistics import FEWEST_RUNS
from mlxe_async.analysis.sweeps import Verdict

SEEDS = tuple(range(FEWEST_RUNS))


def told(best, before):
    return Verdict(SEEDS[: len(best)], tuple(best), tuple(before)).sentences()[1]


@pytest.mark.parametrize(
    ("best", "before"),
    [((-math.inf, 5.0), (3.0, -math.inf)), ((-math.inf, -math.inf), (-math.inf, 1.0))],
    ids=["one of each", "both"],
)
def test_runs_that_failed_on_both_sides_leave_no_difference(best, before):
    assert told(best, before) == "NOT better than the settings as they were: by runs that failed, higher with " + (
        "1 of 2" if math.isfinite(best[1]) else "0 of 2"
    )


def test_a_side_that_failed_alone_loses():
    assert told((5.0, 6.0), (-math.inf, 3.0)).startswith("better than the settings as they were: by runs that failed")


def test_few_seeds_have_no_interval():
    assert Verdict((0, 1, 2), (3.0, 4.0, 5.0), (1.0, 1.0, 1.0)).interval is None
    assert told((3.0, 4.0, 5.0), (1.0, 1.0, 1.0)) == (
        "better than the settings as they were: +3.0 [+2.0 to +4.0 by the seeds], higher with 3 of 3; "
        f"an interval of 95 % takes fresh_seeds = {FEWEST_RUNS} or more"
    )


def test_enough_seeds_have_an_interval_and_small_returns_their_digits():
    said = told((0.94, 0.95, 0.93, 0.96, 0.94, 0.95), (0.90, 0.91, 0.89, 0.90, 0.91, 0.90))
    assert said.startswith("better than the settings as they were: +0.043 [95 % interval +0.0")
    assert said.endswith("higher with 6 of 6")
    assert "the interval holds 0" in told((1.0, 2.0, 1.0, 2.0, 1.0, 2.0), (2.0, 1.0, 2.0, 1.0, 2.0, 1.0))
