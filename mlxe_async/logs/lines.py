"""Lines that differ only in numbers, made from one template: a fraction of the price of making each by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlxe_async.plain_json import encoding

_to_json = encoding(separators=(", ", ": "))
_NUMBERS = {int, float, bool}


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


def _constant(value: Any) -> str:
    return _text(value).replace("%", "%%")


def _text(value: Any) -> str:
    return repr(value) if type(value) is int else _to_json(value)


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
    return _to_json(list(column))[1:-1].split(", ") if column else []
