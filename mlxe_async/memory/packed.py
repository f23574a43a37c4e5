"""Rows as whole words, one after the other, so that one gather copies all columns of a row at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxe_async.rows import Array, Column, RowLayout

WORD = 8


class PackedRows:
    """Where the columns of a layout lie inside a row of 8-byte words.

    Args:
        layout: the columns; wide items come first, so that each is aligned.
    """

    def __init__(self, layout: RowLayout) -> None:
        ordered = sorted(layout.columns, key=lambda column: -np.dtype(column.dtype).itemsize)
        self._columns: list[tuple[Column, slice]] = []
        offset = 0
        for column in ordered:
            end = offset + column.row_bytes
            self._columns.append((column, slice(offset, end)))
            offset = end
        self.words = max(1, -(-offset // WORD))

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column, _ in self._columns]

    def nbytes(self, rows: int) -> int:
        """Bytes of `rows` rows."""
        return WORD * self.words * rows

    def rows(self, buffer: Any, rows: int, offset: int = 0) -> Array:
        """The rows as words (rows, words), a view on `buffer`."""
        return np.frombuffer(buffer, np.uint64, rows * self.words, offset).reshape(rows, self.words)

    def views(self, rows: Array) -> dict[str, Array]:
        """Columns by name, (..., *shape), as views on rows of words (..., words)."""
        base = rows.view(np.uint8)
        return {
            column.name: base[..., where].view(column.dtype).reshape((*rows.shape[:-1], *column.shape))
            for column, where in self._columns
        }
