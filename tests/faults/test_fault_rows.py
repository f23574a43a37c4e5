"""A handful of rows of the catalogue of faults; `tox -e faults` judges all of them."""

import catalogue
import pytest

QUICK = [row for row in catalogue.ROWS.values() if row.quick]


@pytest.mark.long
@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.id)
def test_a_quick_row_is_green(row, tmp_path):
    passed, seen = catalogue.run_case(row, 0, "ci", tmp_path)
    assert passed, seen


@pytest.mark.long
def test_a_row_whose_fault_goes_unpunished_is_red(tmp_path):
    """The control: the same row over a run without its fault."""
    from fault_runs import Row

    def check(case):
        run = case.start({}, {"stop": {"env_steps": 200}})
        case.checks(run, 3)

    passed, seen = catalogue.run_case(Row("X1", "", "", check=check), 0, "ci", tmp_path)
    assert passed is False
    assert "NOT exit code 3 (was 0" in seen


def test_what_the_program_does_not_have_is_red_and_what_the_host_lacks_is_apart():
    from fault_runs import Row

    assert catalogue.judge(Row("X2", "", "", missing="no resume"), "ci", None)["state"] == "red"
    lacking = catalogue.judge(Row("X3", "", "", check=lambda case: None, needs=("a second moon",)), "ci", None)
    assert (lacking["state"], lacking["seen"]) == ("not run", "not run: needs a second moon")


def test_every_row_of_the_specification_is_there():
    numbered = {"E": 32, "L": 9, "M": 8, "S": 18, "R": 19, "P": 6, "C": 7, "K": 7, "T": 22}
    wanted = {f"{letter}{number}" for letter, count in numbered.items() for number in range(1, count + 1)}
    # T2 is judged with K3, T6 with C5.
    assert wanted - {"T2", "T6"} <= set(catalogue.ROWS)
