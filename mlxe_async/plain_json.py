"""JSON of plain values, by an encoder that is made once: the standard library makes its own anew for each value."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder
from typing import Any


def encoding(*, separators: tuple[str, str]) -> Callable[[Any], str]:
    """Return what makes JSON in ASCII of plain values, the same text as of `json.JSONEncoder`.

    It raises TypeError of what is not plain, ValueError of NaN and infinities, RecursionError of what holds itself.

    Args:
        separators: between items, and behind a key.
    """
    slow = json.JSONEncoder(allow_nan=False, separators=separators)
    make: Any = getattr(encoder, "c_make_encoder", None)  # unknown to types
    if make is None:  # there is none in this Python
        return slow.encode
    item, key = separators
    chunks = make(None, slow.default, encoder.encode_basestring_ascii, None, key, item, False, False, False)
    return lambda value: "".join(chunks(value, 0))
