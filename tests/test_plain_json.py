"""The encoder that is made once gives the text that the standard library's gives, and refuses what that refuses."""

import json
import math
from json import encoder

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.plain_json import encoding

SEPARATORS = [(",", ":"), (", ", ": ")]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@pytest.mark.long
@pytest.mark.parametrize("separators", SEPARATORS)
@given(value=PLAIN)
def test_the_text_is_the_standard_librarys(separators, value):
    assert encoding(separators=separators)(value) == json.JSONEncoder(separators=separators).encode(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"a": [math.nan]}])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoding(separators=(",", ":"))(value)


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, b"bytes", {(1, 2): 3}])
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(TypeError):
        encoding(separators=(",", ":"))(value)


def test_what_holds_itself_is_refused():
    value: list[object] = []
    value.append(value)
    with pytest.raises(RecursionError):
        encoding(separators=(",", ":"))(value)


def test_a_python_without_the_fast_encoder_gives_the_same_text(monkeypatch):
    monkeypatch.setattr(encoder, "c_make_encoder", None)
    assert encoding(separators=(", ", ": "))({"a": [1, 2.5, None]}) == '{"a": [1, 2.5, null]}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoding(separators=(", ", ": "))(math.nan)
