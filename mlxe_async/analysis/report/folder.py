"""A run's folder as a report reads it: its log, and what stands in the files beside it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxe_async.analysis.report.points import mapping
from mlxe_async.analysis.report.story import Story
from mlxe_async.errors import ResourceError
from mlxe_async.logs.reader import log_of, read_log
from mlxe_async.storage.files import read_bounded
from mlxe_async.storage.run_folder import RUN, SETTINGS, STATUS, is_held
from mlxe_async.storage.safe_text import redact, visible

LONGEST_FILE = 2**22


@dataclass(frozen=True)
class RunRead:
    """One run, read from its folder.

    Args:
        name: of the folder.
        story: what its log tells.
        is_alive: whether a process holds the folder; None if that cannot be told.
        settings: all of them, by table, without secrets.
        about: `run.json`.
        status: `status.json`.
        notes: files of the folder that cannot be used, and why.
        final_return: mean return of the last training episodes, where the story does not have each of them.
    """

    name: str
    story: Story
    is_alive: bool | None
    settings: Mapping[str, Any]
    about: Mapping[str, Any]
    status: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    final_return: float | None = None

    @property
    def seed(self) -> Any:
        """Its seed, as far as it is known."""
        return self.story.start.get("seed", self.about.get("seed"))

    def fact(self, name: str) -> Mapping[str, Any]:
        """`versions` or `host`, from the log or else from `run.json`."""
        return mapping(self.story.start.get(name)) or mapping(self.about.get(name))

    def setting(self, table: str, key: str) -> Any:
        """The value of one key; None if it is not known."""
        return mapping(self.settings.get(table)).get(key)


def read_run(run: str | os.PathLike[str]) -> RunRead:
    """Read a run.

    Args:
        run: a run folder, the name of one in `runs/`, `latest`, or a log file.

    Raises:
        NotFound: there is no such run.
        ResourceError: its log cannot be read.
    """
    path = log_of(run)
    if path.exists() and not os.access(path, os.R_OK):
        raise ResourceError(f"the log {visible(str(path), 200)} cannot be read: permission denied; expected a log")
    folder, notes = path.parent, list[str]()
    # Asked before reading: what a run wrote before it died is still told.
    is_alive = is_held(folder)
    with _collecting_no_garbage():
        story = Story.of(read_log(path))
    told = mapping(story.start.get("settings"))
    return RunRead(
        name=folder.name,
        story=story,
        is_alive=is_alive,
        settings=redact(told or _file(folder / SETTINGS, tomllib.loads, notes)),
        about=_file(folder / RUN, json.loads, notes),
        status=_file(folder / STATUS, json.loads, notes),
        notes=tuple(notes),
    )


@contextlib.contextmanager
def _collecting_no_garbage() -> Iterator[None]:
    """Spare the search for circles of objects, a fifth of the time for a long log: lines are trees, and soon let go."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _file(path: Path, parse: Callable[[str], Any], notes: list[str]) -> Mapping[str, Any]:
    try:
        return mapping(parse(read_bounded(path, LONGEST_FILE).decode()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be used: {visible(str(error), 200)}")
        return {}
