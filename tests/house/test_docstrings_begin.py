"""Docstrings are sentences: first words that are labels, where a sentence has a subject, may only become fewer."""

import ast
import re
from collections import Counter

import pytest
from house_sheet import PACKAGE

LABELS = {"What": 103, "Whether": 10, "How": 29, "Where": 24, "Of": 16, "As": 16, "From": 10}
"""The most docstrings, those of attributes among them, that may begin with each."""

SLACK = 5


def docstrings_of(source):
    """Docstrings of a file's modules, classes, functions and attributes: strings that are statements."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, ast.Expr):
            nodes += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]
        elif isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


@pytest.fixture(scope="module")
def begun():
    """Each first word of docstrings with how many begin with it."""
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    return Counter(re.match(r"\W*(\w*)", text)[1] for source in sources for text in docstrings_of(source))


@pytest.mark.parametrize("word", LABELS)
def test_docstrings_do_not_begin_with_a_label_more_often_and_the_table_follows(word, begun):
    assert begun[word] <= LABELS[word], f"begin with a subject or a verb instead: {word}"
    assert begun[word] >= LABELS[word] - SLACK, f"{word}: lower it in the table to {begun[word]}"


def test_docstrings_of_attributes_count():
    assert list(docstrings_of('a = "no"\n"""What a is."""\n')) == ["What a is."]
