"""The stranger's twenty questions have their answers where the file says."""

import pytest
from house_sheet import PACKAGE, first_line, hits, questions

FILES = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}


def test_there_are_twenty_different_questions():
    assert len({question["ask"] for question in questions()}) == 20


@pytest.mark.parametrize("question", questions(), ids=lambda question: question["answer"])
def test_the_answer_is_in_the_file_that_is_named_and_in_no_other(question):
    assert [path for path, text in FILES.items() if question["mark"] in text] == [question["answer"]]


@pytest.mark.parametrize("path", sorted(FILES))
def test_every_file_says_in_its_first_line_what_it_is(path):
    assert first_line(PACKAGE / path).endswith((".", "?", ":"))


def test_hits_are_counted_whether_or_not_the_package_is_named():
    first, second = (question["answer"] for question in questions()[:2])
    assert hits(f"1. {first}\n2 mlxe_async/{second}\n3 nowhere.py\n") == [1, 2]
