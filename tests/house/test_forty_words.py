"""The page of words: forty, each once, each used by the code where the page says."""

import re
from collections import Counter

import pytest
from house_sheet import PACKAGE

ROW = re.compile(r"^\| (?P<word>[a-z]+) \| (?P<what>.+) \| `(?P<where>[\w/]+\.py)` \|$")
LINES = [line for line in (PACKAGE / "WORDS.md").read_text().splitlines() if line.startswith("| ")]
WORDS = [match.groupdict() for line in LINES if (match := ROW.match(line))]


def names_in(code):
    """Names that compiled code defines or uses."""
    yield from (code.co_name, *code.co_names, *code.co_varnames, *code.co_freevars)
    for one in code.co_consts:
        if isinstance(one, type(code)):
            yield from names_in(one)
        elif isinstance(one, tuple):  # of the arguments that a call names, among others
            yield from (name for name in one if isinstance(name, str))


def names_of(path):
    """Words of the names that a file defines or uses: `max_policy_lag` -> max, policy, lag."""
    for name in set(names_in(compile(path.read_text(), path, "exec"))):
        yield from re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", name).lower())


@pytest.fixture(scope="module")
def used():
    """Words of the names in each file of the package."""
    return {
        str(path.relative_to(PACKAGE)): set(names_of(path)) | {path.stem, path.parent.name}
        for path in PACKAGE.rglob("*.py")
    }


def is_of(word, names):
    """Whether one of the names is the word, in the singular or the plural."""
    plurals = {word, f"{word}s", f"{word}es", f"{word[:-1]}ies", word.removesuffix("s")}
    return bool(plurals & names)


def test_every_line_of_a_table_can_be_read():
    heads = [line for line in LINES if line.startswith(("| word |", "|---"))]
    assert len(WORDS) + len(heads) == len(LINES)


def test_there_are_forty_words_each_once():
    assert len(WORDS) == 40
    assert [word for word, times in Counter(row["word"] for row in WORDS).items() if times > 1] == []


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row["word"])
def test_a_word_is_used_by_the_code_at_its_place_and_elsewhere(row, used):
    assert is_of(row["word"], used[row["where"]]), row["where"]
    assert sum(is_of(row["word"], names) for names in used.values()) > 1
