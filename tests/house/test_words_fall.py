"""Plain English on the pages and in settings files, too: words without a plain subject may only become fewer."""

import re

import pytest
from house_sheet import PACKAGE

ROOT = PACKAGE.parent
CEILINGS = {"whoever": 0, "whom": 15, "nobody": 0, "somebody": 0, "be it": 0, "so many": 0}
"""The most that each may be used in the package's files, on its pages and in settings files."""

SLACK = 5
BETWEEN = r"\s+(?:#\s*)?"  # of two words, the second perhaps on the next line of a comment


def pages():
    """Paths of the texts that are counted."""
    yield from PACKAGE.rglob("*.py")
    yield from PACKAGE.rglob("*.md")
    yield from ROOT.glob("*.md")
    yield from (path for path in (ROOT / "settings").rglob("*") if path.suffix in (".md", ".py", ".toml", ".json"))


def times(word, text):
    """Count a word or words in a text, as whole words in small or capital letters, across ends of lines too."""
    return len(re.findall(rf"\b{word.replace(' ', BETWEEN)}\b", text, re.IGNORECASE))


def problem(word, count, ceiling):
    """Return what is wrong with a count; "" if nothing is."""
    if count > ceiling:
        return f"{word}: used {count} times, expected at most {ceiling}; name the process, the user or the quantity"
    if count < ceiling - SLACK:
        return f"{word}: lower the ceiling from {ceiling} to {count}; the numbers may only fall"
    return ""


@pytest.fixture(scope="module")
def texts():
    """All texts that are counted."""
    return [path.read_text() for path in pages()]


@pytest.mark.parametrize("word", CEILINGS)
def test_a_word_is_used_no_more_often_than_its_ceiling_and_the_ceiling_follows(word, texts):
    assert not problem(word, sum(times(word, text) for text in texts), CEILINGS[word])


def test_whole_words_are_counted_in_any_case_and_across_lines():
    assert times("so many", "So many rows, so\nmany steps; # so\n# many; also many, so manyfold") == 3
    assert times("whom", "Whom? whomever") == 1


@pytest.mark.parametrize(("count", "said"), [(10, ""), (5, ""), (11, "at most 10"), (4, "from 10 to 4; the numbers")])
def test_a_count_above_the_ceiling_and_one_far_below_it_are_told(count, said):
    found = problem("word", count, 10)
    assert said in found
    assert bool(found) == bool(said)
