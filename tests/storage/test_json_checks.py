"""Plain JSON is checked key by key, and what does not fit is named."""

import json

import pytest

from mlxe_async.storage import json_checks

FORM = json_checks.table(
    {
        "count": json_checks.count,
        "seconds": json_checks.duration,
        "inner": json_checks.table(
            {"flag": json_checks.flag, "names": json_checks.list_of(json_checks.text)}, is_closed=True
        ),
        "by_version": json_checks.by_number(json_checks.list_of(json_checks.number)),
        "which": json_checks.one_of(0, 1),
    },
    {"more": json_checks.maybe(json_checks.integer)},
)
GOOD = {
    "count": 3,
    "seconds": 1.5,
    "inner": {"flag": True, "names": ["a"]},
    "by_version": {"7": [1, -2.5]},
    "which": 1,
    "unknown": object,
}


def changed(place, value):
    """A copy of what is good with one value replaced, or, if that is `...`, removed."""
    good = {**GOOD, "inner": dict(GOOD["inner"]), "by_version": dict(GOOD["by_version"])}
    *path, name = place
    table = good
    for step in path:
        table = table[step]
    if value is ...:
        del table[name]
    else:
        table[name] = value
    return good


@pytest.mark.parametrize(
    "more", [{}, {"more": None}, {"more": -(2**63)}, {"count": 0}, {"count": 2**53}, {"seconds": 0}]
)
def test_what_fits_is_taken(more):
    FORM("facts", {**GOOD, **more})


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["count"], -1, "facts.count: got -1, expected a whole number from 0 to 2^53"),
        (["count"], 2**53 + 1, "facts.count: got 9007199254740993, expected a whole"),
        (["count"], 10**400, "facts.count: got 1000"),
        (["count"], True, "facts.count: got True, expected a whole"),
        (["count"], 1.0, "facts.count: got 1.0, expected a whole"),
        (["count"], "3", "facts.count: got '3', expected a whole"),
        (["count"], None, "facts.count: got None, expected a whole"),
        (["count"], ..., "facts.count: got nothing, expected this key"),
        (["seconds"], float("nan"), "facts.seconds: got nan, expected seconds"),
        (["seconds"], float("inf"), "facts.seconds: got inf, expected seconds"),
        (["seconds"], -0.1, "facts.seconds: got -0.1, expected seconds"),
        (["seconds"], False, "facts.seconds: got False, expected seconds"),
        (["inner"], [], "facts.inner: got [], expected an object"),
        (["inner", "flag"], 1, "facts.inner.flag: got 1, expected true or false"),
        (["inner", "names"], "abc", "facts.inner.names: got 'abc', expected a list"),
        (["inner", "names"], ["a", 3], "facts.inner.names[1]: got 3, expected a text"),
        (["inner", "other"], 3, "facts.inner.other: got a key that is not known, expected one of flag, names"),
        (["by_version", "\x1b[2J" * 50], [], "facts.by_version.\\x1b[2J\\x1b[2J"),
        (["by_version", "x"], [], "facts.by_version.x: got 'x', expected a whole number as its key"),
        (["by_version", "\u0663"], [], "expected a whole number as its key"),
        (["by_version", "7"], [float("nan")], "facts.by_version.7[0]: got nan, expected a finite number"),
        (["by_version", "7"], [10**400], "facts.by_version.7[0]: got 1000"),
        (["which"], 2, "facts.which: got 2, expected one of 0, 1"),
        (["which"], True, "facts.which: got True, expected one of 0, 1"),
        (["more"], 2**63, "facts.more: got 9223372036854775808, expected a whole number of 64 bits"),
    ],
)
def test_what_does_not_fit_is_named(place, value, words):
    with pytest.raises(json_checks.Misfit) as caught:
        FORM("facts", changed(place, value))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [None, [], 3, "x", json.loads("1e999")])
def test_what_is_no_object_at_all_is_named(value):
    with pytest.raises(json_checks.Misfit, match=r"^facts: got .*, expected an object$"):
        FORM("facts", value)
