"""Solved is the first of so many consecutive passes."""

import pytest

from mlxe_async.supervisor.judge import SolvedJudge


@pytest.mark.parametrize(
    ("pattern", "passes", "first"),
    [("+++", 3, 0), ("-+++", 3, 1), ("++-+++", 3, 3), ("++-++", 3, None), ("-+", 1, 1), ("", 3, None), ("+++++", 3, 0)],
)
def test_solved_is_the_first_of_so_many_consecutive_passes(pattern, passes, first):
    judge = SolvedJudge(passes)
    found = {judge.feed(number, passed=mark == "+") for number, mark in enumerate(pattern)} - {None}
    assert found == (set() if first is None else {first})


def test_a_failure_ends_the_row():
    judge = SolvedJudge(3)
    lengths = []
    for number, mark in enumerate("++-+"):
        judge.feed(number, passed=mark == "+")
        lengths.append(len(judge.streak))
    assert lengths == [1, 2, 0, 1]
