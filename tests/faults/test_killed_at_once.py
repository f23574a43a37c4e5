"""A run of which everybody is killed in one moment leaves nothing, not even the simulators of its environments."""

import catalogue  # noqa: F401 - finds the modules beside it
import killed_at_once
import pytest
from fault_runs import Case, Row


@pytest.mark.long
@pytest.mark.parametrize(
    "times", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (len(killed_at_once.WAYS), 200))]
)
def test_nothing_is_left_of_a_run_whose_processes_are_killed_in_one_moment(tmp_path, times, capsys):
    case = Case(Row("X5", "", ""), 0, "ci", tmp_path)
    try:
        left, seconds = killed_at_once.play(case, times)
    finally:
        case.close()
    with capsys.disabled():
        print(f"\n{'; '.join(case.seen)}")
    assert case.failures == []
    assert (left.total(), len(seconds)) == (0, times)
