"""Answers of the right kind pass, whatever else is refused with its place."""

import pytest

from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.messages.answers import LARGEST, Form, require

KIND = {"rows": int, "seconds": float, "norm": (float, None), "cut": bool, "ends": [int], "parts": [{"lane": int}]}
GOOD = {"rows": 3, "seconds": 1, "norm": None, "cut": False, "ends": [1, 2], "parts": [{"lane": 0, "more": "x"}]}


def by_form(answer, kind):
    Form(kind).require(answer)


WAYS = pytest.mark.parametrize("refuse", [require, by_form])


@WAYS
def test_what_is_of_the_kind_passes_with_whole_numbers_for_numbers_and_more_besides(refuse):
    for more in ({}, {"norm": 2.5, "ends": [], "parts": []}, {"norm": -3}, {"besides": object()}):
        refuse(GOOD | more, KIND)
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
@WAYS
def test_what_is_not_is_refused_with_its_place(bad, words, refuse):
    with pytest.raises(ProtocolError, match=words):
        refuse(bad, KIND)


@WAYS
def test_one_of_several_objects_must_fit(refuse):
    kind = {"set_back": ({"version": int}, None)}
    for good in ({"version": 1}, None):
        refuse({"set_back": good}, kind)
    with pytest.raises(ProtocolError, match="set_back: expected an object of another form or null"):
        refuse({"set_back": {"version": "1"}}, kind)


@WAYS
def test_objects_within_objects_must_fit(refuse):
    kind = {"done": {"rows": int, "late": (int, None), "parts": {"metrics": dict}}}
    refuse({"done": {"rows": 1, "late": None, "parts": {"metrics": {}}}}, kind)
    for done, words in (
        (None, "answer: done: expected an object"),
        ({"rows": 1, "late": 0.5, "parts": {"metrics": {}}}, "done: late: expected int or null"),
        ({"rows": 1, "late": True, "parts": {"metrics": {}}}, "done: late: expected int or null"),
        ({"rows": 1, "late": 1, "parts": {}}, "done: parts: metrics is missing"),
        ({"rows": 1, "late": 1, "parts": {"metrics": []}}, "done: parts: metrics: expected dict"),
    ):
        with pytest.raises(ProtocolError, match=words):
            refuse({"done": done}, kind)


def test_a_form_tells_whether_an_answer_fits_and_calls_it_by_its_name():
    form = Form(KIND, "rollout")
    assert form.fits(GOOD)
    assert not form.fits([])
    with pytest.raises(ProtocolError, match="rollout: rows is missing"):
        form.require({})
