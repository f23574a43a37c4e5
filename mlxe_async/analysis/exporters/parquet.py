"""Parquet files, one for each kind of line: a row for each line and a typed column for each field, as in the log.

Columns are those of the CSV files. Whole numbers, numbers, truths and texts are what they are; lists, and columns of
several kinds, are JSON; `ts` is a moment in UTC. A file is replaced as a whole when rows are added, so that a reader
finds a file of whole rows at any moment. After a million rows the next file begins, `phase-generate.2.parquet`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mlxe_async.analysis.exporters.cells import MOST_COLUMNS, cells_of, is_ours, table_of
from mlxe_async.storage.files import STAGED, make_folder, new_file

ROWS_OF_A_FILE, ROWS_OF_A_CHUNK = 1_000_000, 10_000
PATIENCE = 20
"Times the seconds that the last writing took, before a file is written anew: that takes a twentieth at most."
EXACT = 2**53
WHOLE, NUMBER, TRUTH, TEXT, MOMENT = pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.timestamp("ms", tz="UTC")


class Files:
    """Parquet files in a folder; see `Exporter`."""

    forgets = False

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        for earlier in folder.glob("*.parquet"):
            if is_ours(re.sub(r"\.\d+$", "", earlier.stem)):
                earlier.unlink()
        self._folder = folder
        self._tables: dict[str, _Table] = {}
        self._rows = 0

    def feed(self, line: Mapping[str, Any]) -> None:
        """Take in the next line."""
        table = table_of(line, self._tables, lambda kind: _Table(self._folder, kind))
        table.add({**dict(cells_of(line)), "ts": dt.datetime.fromisoformat(line["ts"])})
        self._rows += 1

    def flush(self) -> None:
        """Let readers see what was fed so far, at the latest some times as long after as the last writing took."""
        for table in self._tables.values():
            table.flush()

    def close(self, died: str = "") -> None:  # noqa: ARG002 - that a run died is known by the missing run_end
        """Write all that is left."""
        for table in self._tables.values():
            table.write()

    def told(self) -> str:
        """Return how much was written."""
        files = sum(table.number for table in self._tables.values())
        return f"{self._rows:,} lines in {files} files"


class _Table:
    """The rows of one kind of line: those that wait, those of the present file, and its number."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._waiting: list[dict[str, Any]] = []
        self._chunks: list[pa.Table] = []
        self._columns: dict[str, None] = {}
        self._took_s, self._written_at = 0.0, -1e9
        self._is_whole = True
        self.number = 1

    def add(self, row: dict[str, Any]) -> None:
        self._columns |= dict.fromkeys(row)
        if len(self._columns) > MOST_COLUMNS:
            raise ValueError(f"got more than {MOST_COLUMNS} fields")
        self._waiting.append(row)
        self._is_whole = False
        if len(self._waiting) >= ROWS_OF_A_CHUNK:
            self._gather()
            if sum(map(len, self._chunks)) >= ROWS_OF_A_FILE:
                self.write()
                self.number, self._chunks = self.number + 1, []

    def flush(self) -> None:
        if time.monotonic() - self._written_at >= PATIENCE * self._took_s:
            self.write()

    def write(self) -> None:
        """Put all rows of the present file in its place, if there are new ones."""
        if self._is_whole:
            return
        began = time.monotonic()
        self._gather()
        name = self._kind if self.number == 1 else f"{self._kind}.{self.number}"
        path = self._folder / f"{name}.parquet"
        staged = path.with_name(f"{STAGED}{path.name}")
        staged.unlink(missing_ok=True)
        with new_file(staged, durable=False) as descriptor, pa.PythonFile(_Sink(descriptor), mode="w") as sink:
            pq.write_table(_together(self._chunks, list(self._columns)), sink, compression="zstd")
        staged.replace(path)
        self._is_whole = True
        self._written_at = time.monotonic()
        self._took_s = self._written_at - began

    def _gather(self) -> None:
        if self._waiting:
            names = dict.fromkeys(name for row in self._waiting for name in row)
            columns = {name: _column([row.get(name) for row in self._waiting]) for name in names}
            self._chunks.append(pa.table(columns))
            self._waiting = []


def _column(values: Sequence[Any]) -> pa.Array:
    """Values of one field, None where it is missing, in the narrowest type that holds them exactly."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {bool}:
        return pa.array(values, TRUTH)
    if kinds == {str}:
        return pa.array([_plain(value) for value in values], TEXT)
    if kinds == {dt.datetime}:
        return pa.array(values, MOMENT)
    if kinds <= {int, float}:
        whole = [value for value in values if type(value) is int]
        if kinds == {int} and all(-(2**63) <= value < 2**63 for value in whole):
            return pa.array(values, WHOLE)
        if all(abs(value) <= EXACT for value in whole):
            return pa.array(values, NUMBER)
    return pa.array([None if value is None else _text(value) for value in values], TEXT)


def _text(value: Any) -> str:
    return _plain(value if isinstance(value, str) else json.dumps(value, default=str)) or ""


def _plain(text: str | None) -> str | None:
    """The same text without halves of characters, which no file can hold."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _together(chunks: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """Return one table of all chunks with these columns, each in a type that holds all of its values."""
    kinds = {name: _common([chunk.schema.field(name).type for chunk in chunks if name in chunk.column_names])
             for name in names}  # fmt: skip
    for name, kind in kinds.items():
        if kind == NUMBER and not all(_fits(chunk, name) for chunk in chunks):
            kinds[name] = TEXT
    schema = pa.schema([(name, kind) for name, kind in kinds.items() if kind is not None])
    return pa.concat_tables([_cast(chunk, schema) for chunk in chunks])


def _common(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """The type for a column whose chunks have these; None if no chunk of this file has the column."""
    several = set(kinds) - {pa.null()}
    if len(several) > 1:
        return NUMBER if several == {WHOLE, NUMBER} else TEXT
    return next(iter(several)) if several else (pa.null() if kinds else None)


def _fits(chunk: pa.Table, name: str) -> bool:
    """Return whether whole numbers of a chunk stay what they are as numbers with fractions."""
    if name not in chunk.column_names or chunk.schema.field(name).type != WHOLE:
        return True
    return all(value is None or abs(value) <= EXACT for value in chunk.column(name).to_pylist())


def _cast(chunk: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        chunk.column(field.name).cast(field.type)
        if field.name in chunk.column_names
        else pa.nulls(len(chunk), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


class _Sink:
    """A file that pyarrow writes to through a descriptor of ours, which no link has led to."""

    closed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Any) -> int:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
