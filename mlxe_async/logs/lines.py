"""Lines that differ only in numbers, made from templates: a fraction of the price of making each of them by itself."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlxe_async.storage.safe_text import is_secret

_TO_JSON = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(", ", ": "))
_NUMBERS = {int, float, bool}
_FORMATS: dict[type, str] = {int: "%d", float: "%r"}
LONGEST_NAME = 64
MOST_TEMPLATES = 64


def many_lines(
    same: Mapping[str, Any], columns: Mapping[str, Sequence[int | float]], order: Sequence[str]
) -> list[str]:
    """One JSON object for each row of `columns`, a line each, with its newline.

    Args:
        same: what is the same in all of them, in plain JSON types.
        columns: what is not, by name, all of one length.
        order: all names, identifiers, in the order in which they are written.

    Raises:
        ValueError: a column holds what is no finite number of 64 bits, or columns are not of one length.
    """
    plain = [_plain(columns[name]) for name in order if name in columns]
    columns_told = iter(plain)
    fields = []
    for name in order:
        value = next(columns_told)[0] if name in columns else _constant(same[name])
        fields.append(f'"{name}": {value}')
    line = "{" + ", ".join(fields) + "}\n"
    return [line % row for row in zip(*[column for _, column in plain], strict=True)]


class LineMaker:
    """Makes lines of one kind about one role, by a template for each shape that their values have.

    Args:
        same: what is the same in all of them, in plain JSON types, by name.
        defaults: what stands where a line has no value of its own, by name.
        names: of the values, identifiers, in the order in which they are written.
    """

    def __init__(self, same: Mapping[str, Any], defaults: Mapping[str, Any], names: Sequence[str]) -> None:
        self._same, self._defaults, self._names = same, defaults, names
        self._templates: dict[tuple[Any, ...], str | None] = {}

    def line(self, stamp: tuple[str, int, int], values: Mapping[str, Any]) -> str | None:
        """One JSON object, without a newline; None: these values must be looked at one by one.

        Args:
            stamp: `ts`, `mono_ns` and `seq`.
            values: finite numbers, short texts of which there are few, None, and tables of finite numbers.
        """
        shape: list[Any] = []
        numbers: list[int | float] = []
        size = 0.0
        for name, value in values.items():
            kind = type(value)
            if kind is int or kind is float:
                size += abs(value)
                numbers.append(value)
                shape += (name, kind)
            elif kind is dict:
                shape += (name, tuple(value))
                for number in value.values():
                    if type(number) is not float:
                        return None
                    size += abs(number)
                    numbers.append(number)
            elif value is None or (kind is str and len(value) <= LONGEST_NAME):
                shape += (name, kind, value)
            else:
                return None
        if not size < 2**63:  # one of them is not finite, or may be too long for 64 bits
            return None
        key = tuple(shape)
        if key not in self._templates:
            if len(self._templates) >= MOST_TEMPLATES:
                self._templates.clear()
            self._templates[key] = self._template(values)
        template = self._templates[key]
        return None if template is None else template % (*stamp, *numbers)

    def _template(self, values: Mapping[str, Any]) -> str | None:
        """What values of this shape are filled into; None if they do not fit the names, or one is that of a secret."""
        if list(values) != [name for name in self._names if name in values]:
            return None
        fields = ['"ts": "%s"', '"mono_ns": %d', '"seq": %d']
        for name, value in self._same.items():
            fields.append(f'"{name}": {_constant(value)}')
        for name in self._names:
            if name not in values and name not in self._defaults:
                return None
            value = values.get(name, self._defaults.get(name))
            if type(value) is dict:
                if not all(type(key) is str and not is_secret(key) for key in value):
                    return None
                inner = ", ".join(f"{_constant(key)}: %r" for key in value)
                fields.append(f'"{name}": {{{inner}}}')
            else:
                format_ = _FORMATS.get(type(value)) if name in values else None
                fields.append(f'"{name}": {format_ or _constant(value)}')
        return "{" + ", ".join(fields) + "}"


def _constant(value: Any) -> str:
    return _text(value).replace("%", "%%")


def _text(value: Any) -> str:
    return repr(value) if type(value) is int else _TO_JSON.encode(value)


def _plain(column: Sequence[int | float]) -> tuple[str, Sequence[Any]]:
    """How each value of a column is formatted, and what: numbers as they are, without a text of their own first."""
    kinds = set(map(type, column))
    if kinds == {int} and min(column) >= -(2**63) and max(column) < 2**63:
        return "%d", column
    if kinds == {float} and all(map(math.isfinite, column)):
        return "%r", column
    if kinds == {bool}:
        return "%s", ["true" if value else "false" for value in column]
    return "%s", _texts(column)


def _texts(column: Sequence[int | float]) -> list[str]:
    kinds = set(map(type, column))
    if not kinds <= _NUMBERS or (int in kinds and not -(2**63) <= min(column) <= max(column) < 2**63):
        raise ValueError(f"expected plain numbers of 64 bits, got {kinds}")
    return _TO_JSON.encode(list(column))[1:-1].split(", ") if column else []
