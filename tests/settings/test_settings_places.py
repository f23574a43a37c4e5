"""The scanner finds the line of every key, and never disagrees with the parser about what is there."""

import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxe_async.settings.toml_places import TooMuch, find_places

TEXT = '''# a comment with [brackets] and = signs
top = 1
[table]  # another
key = "a # no comment, no \\" end"
'quoted key' = 'it''s
"b\\u0062" = """
multi = 1
\\"""
"""
dotted.inner.deep = 1979-05-27 07:32:00
list = [
  1, # one
  [2, 3],

  {x = 1, y.z = [4]},
]
[[items]]
name = 'first'
[items.sub]
a = 1
[[items]]
name = "second"
[items.sub]
a = 2
'''.replace("'it''s\n", "'its'\n")


def test_every_key_table_and_item_has_its_line():
    places = find_places(TEXT)
    lines = TEXT.split("\n")
    assert places[("top",)] == 2
    assert places[("table",)] == 3
    assert places[("table", "key")] == 4
    assert places[("table", "quoted key")] == 5
    assert places[("table", "bb")] == 6
    assert places[("table", "dotted", "inner", "deep")] == lines.index("dotted.inner.deep = 1979-05-27 07:32:00") + 1
    first = lines.index("list = [") + 1
    assert places[("table", "list", 0)] == first + 1
    assert places[("table", "list", 1, 1)] == first + 2
    assert places[("table", "list", 2, "y", "z", 0)] == first + 4
    assert lines[places[("items", 1, "name")] - 1] == 'name = "second"'
    assert places[("items", 1, "sub", "a")] == places[("items", 1)] + 3


def paths(value, path=()):
    """Every path of a parsed tree."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*path, index))


def test_the_scanner_finds_exactly_what_the_parser_finds():
    assert set(find_places(TEXT)) == set(paths(tomllib.loads(TEXT)))


PIECES = [
    *("a", "b.c", '"q"', "'s'", "=", "1", "-2.5e3", "true", '"x"', "'y'", "[", "]", "[["),
    *("]]", "{", "}", ",", ".", '"', "'", "\\", "é", "inf", "[t]", "[[t]]", "#c"),
]
pieces = st.sampled_from(
    [*PIECES, "'''", " ", "\n", "\r\n", " = ", "a = 1\n", "[t]\n", "[[t]]\n", "x = [1, 2]\n", '"""']
)


@given(st.lists(pieces, max_size=30).map("".join))
@example("a = [\n")
@example("a = {b = 1,\n c = 2}")
@example('a = """"""""')
@example("b.cb.cb.cb.cb.cb.cb.cb.c")
def test_text_of_any_kind_ends_the_scan_and_valid_text_is_understood(text):
    try:
        places = find_places(text)
    except TooMuch:  # its line is held by a test of its own
        return
    try:
        tree = tomllib.loads(text)
    except ValueError:
        return
    assert set(paths(tree)) <= set(places)
    assert all(1 <= line <= text.count("\n") + 1 for line in places.values())


def test_limits_are_told_with_the_line():
    for text in ("\n\na = " + "[" * 17, "\n\n" + ".".join("abcdefghi") + " = 1", "\n\na = " + "1" * 65):
        with pytest.raises(TooMuch) as refused:
            find_places(text)
        assert refused.value.line == 3


def test_what_is_within_the_limits_passes():
    text = "a = " + "[" * 16 + "]" * 16 + "\n" + ".".join("bcdefghi") + " = " + "1" * 64
    assert set(paths(tomllib.loads(text))) <= set(find_places(text))
