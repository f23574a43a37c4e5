"""Secrets and control characters do not get out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.storage.safe_text import REDACTED, is_secret, redact, visible


@given(st.text())
def test_shown_text_is_one_printable_line(text):
    assert visible(text).isprintable()
    assert visible(text, 5).isprintable()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_shown_as_it_is(text):
    assert visible(text) == text


def test_what_terminals_obey_is_shown_as_an_escape():
    assert visible("a\n\x1b[31m\x9b\u202e\ud800") == "a\\n\\x1b[31m\\x9b\\u202e\\ud800"


@pytest.mark.parametrize(
    "name",
    [
        *("token", "api_key", "API_KEY", "apiKey", "authToken", "password", "db_passwd", "SECRET", "client-secret"),
        *("key", "github.token", "access_tokens", "private_key_path", "apikey"),
    ],
)
def test_names_of_secrets_are_recognised(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["keep", "monkey", "keyboard", "tokenizer", "turkey", "compass", "env", "seed"])
def test_names_that_only_look_alike_are_not(name):
    assert not is_secret(name)


def test_texts_under_secret_names_are_left_out_at_any_depth():
    tree = {"a": [{"token": "x"}], "keys": {"b": ["x", 1, None]}, "password": 7, "max_tokens": 7, "plain": "y"}
    assert redact(tree) == {
        "a": [{"token": REDACTED}],
        "keys": {"b": [REDACTED, 1, None]},
        "password": REDACTED,
        "max_tokens": 7,
        "plain": "y",
    }
