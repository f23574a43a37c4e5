"""The runs of a folder, with little read of each: what it learns, how far it is, whether it goes on."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlxe_async.analysis.endings import ending_of
from mlxe_async.analysis.report.ending import amount, count, value_of
from mlxe_async.analysis.report.markup import Markup, element, table
from mlxe_async.analysis.report.points import known, mapping
from mlxe_async.logs.reader import event_of
from mlxe_async.storage.files import open_plain, read_bounded
from mlxe_async.storage.run_folder import LATEST, LOG, SETTINGS, STATUS, is_held
from mlxe_async.storage.safe_text import visible

MOST_ENTRIES = 20_000  # of the folder that are looked at
MOST_RUNS = 200  # that are listed, the newest
LONGEST_FILE = 2**16
LAST_BYTES = 2**16
LONGEST_NAME = 255

_Mark = tuple[int, int, int]  # by which it is noticed that a run's files have changed


@dataclass(frozen=True)
class Listed:
    """One run of the list.

    Args:
        name: of its folder.
        touched: when its log was last written, in nanoseconds since 1970.
        state: one word, as on its page.
        what: algorithm, environment and schedule, in words.
        counts: `env_steps`, `episodes`, `seconds`, `mean_return`, as far as they are known.
    """

    name: str
    touched: int
    state: str
    what: str
    counts: Mapping[str, float | None]


class Runs:
    """The runs in a folder; or a run's folder itself, which is then the only one.

    Args:
        base: the folder, or a link to it. It may be made later.
    """

    def __init__(self, base: Path) -> None:
        self.base = base.resolve()
        self._is_one = _log_mark(self.base) is not None
        self._known: dict[str, tuple[_Mark, Listed]] = {}

    def find(self, name: str) -> Path | None:
        """The folder of a run by its name, or of the newest as `latest`; None if there is none."""
        if name == LATEST:
            newest = max(self._marks().items(), key=lambda item: item[1][0], default=None)
            return None if newest is None else self._path(newest[0])
        if not _is_plain(name) or (self._is_one and name != self.base.name):
            return None
        path = self._path(name)
        return path if _log_mark(path) is not None else None

    async def listed(self) -> list[Listed]:
        """The newest runs, by the last time that their logs were written; other work goes on in between."""
        newest = sorted(self._marks().items(), key=lambda item: item[1][0], reverse=True)[:MOST_RUNS]
        found = []
        for name, mark in newest:
            known_ = self._known.get(name)
            if known_ is None or known_[0] != mark or known_[1].state in ("running", "unknown"):
                self._known[name] = mark, _look_at(self._path(name), mark[0])
                await asyncio.sleep(0)
            found.append(self._known[name][1])
        self._known = {one.name: self._known[one.name] for one in found}
        return found

    def _path(self, name: str) -> Path:
        return self.base if self._is_one else self.base / name

    def _marks(self) -> dict[str, _Mark]:
        if self._is_one:
            mark = _log_mark(self.base)
            return {} if mark is None else {self.base.name: mark}
        try:
            with os.scandir(self.base) as entries:
                names = [entry.name for entry in itertools.islice(entries, MOST_ENTRIES) if _is_plain(entry.name)]
        except OSError:  # it is not there, or not there yet
            return {}
        return {name: mark for name in names if (mark := _log_mark(self.base / name)) is not None}


def list_of(found: list[Listed]) -> Markup:
    """The list as a table; each name leads to the run's page."""
    rows = [
        [
            element("a", visible(one.name, 80), href=f"/run/{quote(one.name, safe='')}"),
            element("span", one.state, class_=f"state {one.state}"),
            one.what,
            *(_shown(one.counts.get(key)) for key in ("env_steps", "episodes", "mean_return")),
            "" if (seconds := one.counts.get("seconds")) is None else amount(seconds),
        ]
        for one in found
    ]
    if not rows:
        return element("p", "There is no run in this folder yet; one that begins appears here.")
    return table(["run", "state", "what", "steps", "episodes", "mean return", "took"], rows, "Runs", numeric=False)


def _is_plain(name: str) -> bool:
    """Return whether a name is that of an entry of a folder, and can stand in an address."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return 0 < len(name) <= LONGEST_NAME and "/" not in name and "\0" not in name and name not in (".", "..")


def _look_at(path: Path, touched: int) -> Listed:
    held = is_held(path)  # asked before reading: what a run wrote before it died is still told
    last, status, settings = _last_event(path / LOG), _json(path / STATUS), _toml(path / SETTINGS)
    end = last if last.get("event") == "run_end" else {}
    state = ending_of(has_end=bool(end), is_held=held)
    if held:
        state = "running"
    elif end:
        solved, code, reason = end.get("solved") is True, end.get("exit_code"), str(end.get("reason", ""))
        word = "finished" if code == 0 else "stopped" if reason.startswith("SIG") else "failed"
        return Listed(path.name, touched, "solved" if solved else word, _what(settings), _counts(status, end))
    return Listed(path.name, touched, state, _what(settings), _counts(status, last))


def _counts(status: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, float | None]:
    counts = {key: known(status, key) for key in ("env_steps", "episodes", "seconds", "mean_return")}
    told = {key: known(end, key) for key in ("env_steps", "episodes")} | (
        {"seconds": known(end, "seconds")} if end.get("event") == "run_end" else {}
    )
    return {**counts, **{key: value for key, value in told.items() if value is not None}}


def _what(settings: Mapping[str, Any]) -> str:
    names = (("algorithm", "name", ""), ("task", "env", "on "), ("schedule", "kind", "schedule "))
    told = [f"{before}{mapping(settings.get(where)).get(key, '?')}" for where, key, before in names]
    return visible(" ".join(told), 200)


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return count(value) if value == int(value) else value_of(value)


def _log_mark(path: Path) -> _Mark | None:
    """Time, length and number of a run's log; None where there is no run's folder, or only a link to one."""
    try:
        folder, log = os.lstat(path), os.lstat(path / LOG)
    except (OSError, ValueError):
        return None
    if not stat.S_ISDIR(folder.st_mode) or not stat.S_ISREG(log.st_mode):
        return None
    return log.st_mtime_ns, log.st_size, log.st_ino


def _last_event(path: Path) -> Mapping[str, Any]:
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            lines = file.read(LAST_BYTES).splitlines()
    except OSError:
        return {}
    return (event_of(lines[-1]) if lines else None) or {}


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(read_bounded(path, LONGEST_FILE)))
    except (OSError, ValueError, RecursionError):
        return {}


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_bounded(path, LONGEST_FILE).decode())
    except (OSError, ValueError, RecursionError):
        return {}
