"""Checks of plain JSON, key by key: for files whose checksums fit although they were changed.

A check is a function `check(place, value)` that raises `Misfit`. `place` names the value, such as
`facts.state.counters.updates`; the message says what was got there and what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

MOST_COUNT = 2**53  # beyond it other readers of JSON round
LONGEST_SHOWN = 60

Check = Callable[[str, Any], None]


class Misfit(ValueError):
    """A value is not what it must be; the message names it, what was got and what was expected."""


def misfit(place: str, value: Any, expected: str) -> Misfit:
    """The error about one value."""
    shown = ascii(value)
    if len(shown) > LONGEST_SHOWN:
        shown = f"{shown[:LONGEST_SHOWN]}..."
    return Misfit(f"{place}: got {shown}, expected {expected}")


def shown(name: str) -> str:
    """A name out of a file, without what a terminal would obey, and not too long."""
    return ascii(name)[1:-1][:LONGEST_SHOWN]


def count(place: str, value: Any) -> None:
    """A whole number from 0 to 2^53."""
    if type(value) is not int or not 0 <= value <= MOST_COUNT:
        raise misfit(place, value, "a whole number from 0 to 2^53")


def integer(place: str, value: Any) -> None:
    """A whole number of 64 bits."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise misfit(place, value, "a whole number of 64 bits")


def number(place: str, value: Any) -> None:
    """A finite number."""
    if type(value) not in (int, float) or abs(value) >= 2.0**1023 or not math.isfinite(value):
        raise misfit(place, value, "a finite number")


def duration(place: str, value: Any) -> None:
    """Seconds, from 0 to 10^12."""
    if type(value) not in (int, float) or not 0 <= value <= 1e12:
        raise misfit(place, value, "seconds, from 0 to 10^12")


def flag(place: str, value: Any) -> None:
    """True or false."""
    if type(value) is not bool:
        raise misfit(place, value, "true or false")


def text(place: str, value: Any) -> None:
    """A text."""
    if type(value) is not str:
        raise misfit(place, value, "a text")


def anything(_place: str, _value: Any) -> None:
    """Whatever it is, it only has to be there."""


def one_of(*values: Any) -> Check:
    """One of these."""

    def check(place: str, value: Any) -> None:
        if not any(type(value) is type(other) and value == other for other in values):
            raise misfit(place, value, f"one of {', '.join(map(str, values))}")

    return check


def maybe(inner: Check) -> Check:
    """Null, or what `inner` takes."""

    def check(place: str, value: Any) -> None:
        if value is not None:
            inner(place, value)

    return check


def list_of(inner: Check) -> Check:
    """A list whose items `inner` takes."""

    def check(place: str, value: Any) -> None:
        if type(value) is not list:
            raise misfit(place, value, "a list")
        for position, item in enumerate(value):
            inner(f"{place}[{position}]", item)

    return check


def by_name(inner: Check) -> Check:
    """An object of any keys whose values `inner` takes."""

    def check(place: str, value: Any) -> None:
        for name, item in _object(place, value).items():
            inner(f"{place}.{shown(name)}", item)

    return check


def by_number(inner: Check) -> Check:
    """An object whose keys are whole numbers, and whose values `inner` takes."""

    def check(place: str, value: Any) -> None:
        for name, item in _object(place, value).items():
            if not (name.isascii() and name.isdigit() and len(name) <= 15):
                raise misfit(f"{place}.{shown(name)}", name, "a whole number as its key")
            inner(f"{place}.{shown(name)}", item)

    return check


def table(
    needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None, *, is_closed: bool = False
) -> Check:
    """An object with keys of its own.

    Args:
        needed: those that must be there, with what takes their values.
        optional: those that may be missing.
        is_closed: whether no other keys may be there.
    """
    known = {**needed, **(optional or {})}

    def check(place: str, value: Any) -> None:
        there = _object(place, value)
        for name in needed:
            if name not in there:
                raise Misfit(f"{place}.{name}: got nothing, expected this key")
        for name, item in there.items():
            if name in known:
                known[name](f"{place}.{name}", item)
            elif is_closed:
                raise Misfit(f"{place}.{shown(name)}: got a key that is not known, expected one of {', '.join(known)}")

    return check


def _object(place: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise misfit(place, value, "an object")
    return value
