"""Plain English: words that hide a sentence's subject are counted in the package's prose, and may only become fewer."""

import ast
import io
import re
import tokenize
from collections import Counter

import pytest
from house_sheet import PACKAGE

WORDS = {
    "whoever": 0,
    "whom": 5,
    "nobody": 0,
    "somebody": 0,
    "be it": 0,
    "so many": 0,
    "as it is written": 3,
}
"""How often each stands in docstrings, comments and messages."""

LABELS = {"What": 103, "Whether": 10, "How": 29, "Where": 24, "Of": 16, "As": 16, "From": 10}
"""How many docstrings, those of attributes among them, begin with each: labels, where a sentence has a subject."""

LOWER = "lower it in the table"


def texts_of(source):
    """All strings of a file, and its comments: those of adjacent lines as one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    above, lines = 0, []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != above + 1:
                yield " ".join(lines)
                lines = []
            above = token.start[0]
            lines.append(token.string.lstrip("# "))
    yield " ".join(lines)


def docstrings_of(source):
    """Docstrings of a file's modules, classes, functions and attributes: strings that are statements."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def times(words, texts):
    """How often each of the words stands in the texts, in small or capital letters, across ends of lines too."""
    found = Counter()
    for text in texts:
        flat = " ".join(text.split())
        for word in words:
            found[word] += len(re.findall(rf"\b{word}\b", flat, re.IGNORECASE))
    return found


@pytest.fixture(scope="module")
def sources():
    """The text of each file of the package."""
    return [path.read_text() for path in PACKAGE.rglob("*.py")]


@pytest.fixture(scope="module")
def counted(sources):
    """Each word with how often it is used."""
    return times(WORDS, (text for source in sources for text in texts_of(source)))


@pytest.fixture(scope="module")
def begun(sources):
    """Each first word of docstrings with how many begin with it."""
    return Counter(re.match(r"\W*(\w*)", text)[1] for source in sources for text in docstrings_of(source))


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_hides_the_subject_is_not_used_more_often(word, counted):
    assert counted[word] <= WORDS[word], f"say it with a subject: {word}"


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_is_used_less_often_is_lowered_in_the_table(word, counted):
    assert counted[word] >= WORDS[word], f"{word}: {LOWER}"


@pytest.mark.parametrize("word", LABELS)
def test_docstrings_do_not_begin_with_a_label_more_often(word, begun):
    assert begun[word] <= LABELS[word], f"begin with a subject or a verb instead: {word}"


@pytest.mark.parametrize("word", LABELS)
def test_a_label_that_is_used_less_often_is_lowered_in_the_table(word, begun):
    assert begun[word] >= LABELS[word], f"{word}: {LOWER}"


def test_words_are_found_in_docstrings_comments_and_messages():
    lines = ('"""Whoever asks,', "so", 'many times."""', "# nobody", "# is here: so", "# many", 'f"so many of {a}"')
    found = times(WORDS, texts_of("\n".join(lines)))
    assert {word: often for word, often in found.items() if often} == {"whoever": 1, "nobody": 1, "so many": 3}


def test_names_are_not_words():
    assert not any(times(WORDS, texts_of("whom = nobody\n")).values())


def test_docstrings_of_attributes_count():
    assert list(docstrings_of('a = "no"\n"""What a is."""\n')) == ["What a is."]
