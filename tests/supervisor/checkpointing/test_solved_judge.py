"""Solved is the first of so many consecutive passes."""

import pytest

from mlxe_async.supervisor.checkpointing.solved import SolvedJudge


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
        lengths.append(judge.length)
    assert lengths == [1, 2, 0, 1]


def test_a_row_of_any_length_takes_no_more_memory_and_is_gone_on_with():
    judge = SolvedJudge(3)
    for version in range(1000):
        judge.feed(version, passed=True)
    assert (judge.streak, judge.length) == ([0, 1, 2], 1000)
    again = SolvedJudge(3)
    again.go_on(judge.streak, judge.length)
    assert again.feed(1000, passed=True) == 0
    assert (again.streak, again.length) == ([0, 1, 2], 1001)


def test_a_row_that_was_saved_whole_is_gone_on_with():
    judge = SolvedJudge(2)
    judge.go_on([5, 7, 8])
    assert (judge.streak, judge.length) == ([5, 7], 3)
