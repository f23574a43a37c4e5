"""Eleven faults of one environment: a run names, locates and contains each of them."""

import catalogue  # noqa: F401 - finds the modules beside it
import pytest
import side_by_side
from fault_runs import Case, Row


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1], ids=["oa", "is"])
def test_eleven_faults_are_named_located_and_contained(tmp_path, seed):
    case = Case(Row("6", "", ""), seed, "ci", tmp_path)
    try:
        side_by_side.judge(case, side_by_side.play_ours(case))
    finally:
        case.close()
    assert case.failures == []
