"""Kinds of lines, and a line as the cells of a table: fields of fields are columns of their own, `losses.entropy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from mlxe_async.logs.events import EVENTS
from mlxe_async.storage.files import PLAIN_NAME
from mlxe_async.storage.safe_text import visible

Table = TypeVar("Table")
MOST_KINDS, MOST_COLUMNS, DEEPEST = 200, 5000, 8


def kind_of(line: Mapping[str, Any]) -> str:
    """Return which table a line belongs to: its event, of phases with their name, such as `phase-learn`.

    Raises:
        ValueError: that is no plain name of a file.
        KeyError: the line tells no event.
    """
    kind = str(line["event"])
    kind = f"phase-{line['phase']}" if kind == "phase" else kind
    if not PLAIN_NAME.fullmatch(kind):
        raise ValueError(f"got {visible(repr(kind), 60)} as a kind of line")
    return kind


def table_of(line: Mapping[str, Any], tables: dict[str, Table], new: Callable[[str], Table]) -> Table:
    """Return the table that a line belongs to, made by its kind if there is none yet.

    Raises:
        ValueError: there are too many, or as `kind_of`.
        KeyError: as `kind_of`.
    """
    kind = kind_of(line)
    if kind not in tables:
        if len(tables) == MOST_KINDS:
            raise ValueError(f"got more than {MOST_KINDS} kinds of lines")
        tables[kind] = new(kind)
    return tables[kind]


def is_ours(name: str) -> bool:
    """Return whether a table has the name of a kind of line."""
    return name in EVENTS or name.startswith("phase-")


def cells_of(line: Mapping[str, Any], place: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a line with their values, lists as they are."""
    for name, value in line.items():
        key = f"{place}{visible(name)}"
        if isinstance(value, Mapping) and depth < DEEPEST:
            yield from cells_of(value, f"{key}.", depth + 1)
        else:
            yield key, value
