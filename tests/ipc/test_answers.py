"""Answers of the right kind pass, whatever else is refused with its place."""

import pytest

from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.messages.answers import LARGEST, require

KIND = {"rows": int, "seconds": float, "norm": (float, None), "cut": bool, "ends": [int], "parts": [{"lane": int}]}
GOOD = {"rows": 3, "seconds": 1, "norm": None, "cut": False, "ends": [1, 2], "parts": [{"lane": 0, "more": "x"}]}


def test_what_is_of_the_kind_passes_with_whole_numbers_for_numbers_and_more_besides():
    for more in ({}, {"norm": 2.5, "ends": [], "parts": []}, {"besides": object()}):
        require(GOOD | more, KIND)
    require([1.5, 2], [float])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (None, "answer: expected an object, got 'None'"),
        ({}, "answer: rows is missing"),
        (GOOD | {"rows": "3"}, "answer: rows: expected int, got '3'"),
        (GOOD | {"rows": True}, "rows: expected int, got 'True'"),
        (GOOD | {"rows": 3.0}, "rows: expected int"),
        (GOOD | {"rows": -LARGEST}, "rows: expected int"),
        (GOOD | {"seconds": LARGEST}, "seconds: expected float"),
        (GOOD | {"norm": "1"}, "norm: expected float or null"),
        (GOOD | {"cut": 0}, "cut: expected bool"),
        (GOOD | {"ends": {}}, "ends: expected a list"),
        (GOOD | {"ends": [1, True]}, r"ends\[1\]: expected int"),
        (GOOD | {"ends": [1, LARGEST]}, r"ends\[1\]: expected int"),
        (GOOD | {"parts": [{"lane": 0}, {}]}, r"parts\[1\]: lane is missing"),
    ],
)
def test_what_is_not_is_refused_with_its_place(bad, words):
    with pytest.raises(ProtocolError, match=words):
        require(bad, KIND)


def test_one_of_several_objects_must_fit():
    kind = {"set_back": ({"version": int}, None)}
    require({"set_back": {"version": 1}}, kind)
    with pytest.raises(ProtocolError, match="set_back: expected an object of another form or null"):
        require({"set_back": {"version": "1"}}, kind)
