"""Turning whatever an environment raises or returns into text that is safe to log and to send.

An environment is foreign code: its exceptions may refuse to be printed, carry megabytes, or be their own cause.
"""

from __future__ import annotations

import reprlib
import traceback
from typing import Any

import numpy as np

MAX_TRACE_BYTES = 16 * 1024
MAX_WORDS = 300

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 80


def trace_of(error: BaseException) -> str:
    """The traceback as clean UTF-8 of at most 16 KiB: its beginning and its end, where it is longer."""
    try:
        text = "".join(traceback.format_exception(error, limit=-60))
    except BaseException:  # noqa: BLE001 - an exception that cannot be printed must not take the executor along
        return f"{_type_name(error)}: its traceback cannot be printed"
    return clipped(text, MAX_TRACE_BYTES)


def words_of(error: BaseException) -> str:
    """`ValueError: its message`, on one line and short, also when the exception cannot be printed."""
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - see trace_of
        message = "(its message cannot be printed)"
    return f"{_type_name(error)}: {one_line(message)}" if message else _type_name(error)


def one_line(text: str) -> str:
    """Clean text without line breaks, at most 300 characters."""
    flat = " ".join(clipped(text[: 10 * MAX_WORDS], 10 * MAX_WORDS).split())
    return flat if len(flat) <= MAX_WORDS else flat[: MAX_WORDS - 1] + "…"


def clipped(text: str, limit: int) -> str:
    """`text` as UTF-8 of at most `limit` bytes, the middle left out; halves of surrogate pairs are spelled out."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) > limit:
        mark = b"\n... (middle left out) ...\n"
        half = (limit - len(mark)) // 2
        raw = raw[:half] + mark + raw[-half:]
    return raw.decode("utf-8", "ignore")


def described(value: Any) -> str:
    """Return what a value is, in a few words, without trusting its `__repr__`."""
    try:
        if isinstance(value, np.ndarray):
            return f"an array of shape {value.shape} and dtype {value.dtype}"
        return f"{one_line(_SHORT.repr(value))} ({_type_name(value)})"
    except BaseException:  # noqa: BLE001 - see trace_of
        return f"a {_type_name(value)} that cannot be printed"


def _type_name(value: object) -> str:
    return clipped(str(type.__getattribute__(type(value), "__name__")), 100)
