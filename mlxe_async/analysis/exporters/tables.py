"""CSV files, one for each kind of line: a row for each line and a column for each field, as it stands in the log.

Fields of fields are columns of their own, `losses.entropy`; lists stay JSON; texts are on one line. Times are those of
the log, `seq` is its order. A column that comes up later is empty in the rows before.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from mlxe_async.analysis.exporters.cells import MOST_COLUMNS, cells_of, is_ours, table_of
from mlxe_async.storage.files import STAGED, make_folder, open_plain
from mlxe_async.storage.safe_text import visible

ROWS_AT_ONCE = 256


class Files:
    """CSV files in a folder; see `Exporter`."""

    forgets = False

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        for earlier in folder.glob("*.csv"):
            if is_ours(earlier.stem):
                earlier.unlink()
        self._folder = folder
        self._tables: dict[str, _Table] = {}
        self._rows = 0

    def feed(self, line: Mapping[str, Any]) -> None:
        """Take in the next line."""
        table = table_of(line, self._tables, lambda kind: _Table(self._folder / f"{kind}.csv"))
        table.write({name: _text(value) for name, value in cells_of(line)})
        self._rows += 1

    def flush(self) -> None:
        """Let readers see all that was fed so far."""
        for table in self._tables.values():
            table.flush()

    def close(self, died: str = "") -> None:  # noqa: ARG002 - that a run died is known by the missing run_end
        """Close the files, all of them also if one cannot be written."""
        with contextlib.ExitStack() as closing:
            for table in self._tables.values():
                closing.callback(table.close)

    def told(self) -> str:
        """Return how much was written."""
        return f"{self._rows:,} lines in {len(self._tables)} files"


class _Table:
    """A CSV file that grows by whole rows, and now and then by columns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: dict[str, None] = {}
        path.unlink(missing_ok=True)
        self._file = _new(path)
        self._held, self._rows = io.StringIO(), 0  # rows that are written together

    def write(self, row: Mapping[str, str]) -> None:
        if not row.keys() <= self._columns.keys():
            self._widen([name for name in row if name not in self._columns])
        csv.writer(self._held, lineterminator="\n").writerow([row.get(name, "") for name in self._columns])
        self._rows += 1
        if self._rows == ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        self._file.write(self._held.getvalue())
        self._held, self._rows = io.StringIO(), 0
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()

    def _widen(self, names: list[str]) -> None:
        """Write all rows anew, each of which is a line, with further columns at the end."""
        if len(self._columns) + len(names) > MOST_COLUMNS:
            raise ValueError(f"got more than {MOST_COLUMNS} fields")
        self.close()
        self._columns |= dict.fromkeys(names)
        staged = self._path.with_name(f"{STAGED}{self._path.name}")
        staged.unlink(missing_ok=True)
        wider = _new(staged)
        try:
            csv.writer(wider, lineterminator="\n").writerow(self._columns)
            with open_plain(self._path) as former:
                former.readline()
                for row in former:
                    wider.write(row.decode().rstrip("\n") + "," * len(names) + "\n")
            wider.flush()
            staged.replace(self._path)
        except BaseException:
            staged.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                wider.close()
            raise
        self._file = wider


def _new(path: Path) -> IO[str]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", newline="")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return visible(value)
    return json.dumps(value)
