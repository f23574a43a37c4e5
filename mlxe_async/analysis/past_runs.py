"""Run folders and what became of the runs in them; and their removal, which is careful about what it removes."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxe_async.analysis.exporters import TARGETS
from mlxe_async.errors import NotFound, ResourceError, RunFailed, RunFolderBusy
from mlxe_async.storage.files import STAGED, open_plain, read_bounded
from mlxe_async.storage.run_folder import (
    LATEST,
    LOCK,
    LOG,
    RECORDING,
    RUN,
    SETTINGS,
    STATUS,
    VIDEOS,
    is_held,
    point_latest_to,
)
from mlxe_async.storage.safe_text import visible
from mlxe_async.storage.seals import SEAL

NAME = re.compile(r"(?P<time>\d{8}T\d{6}Z)-[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
CONTENTS = (LOCK, LOG, SETTINGS, SEAL, RUN, STATUS, RECORDING, "checkpoints", "crash", "output", VIDEOS, *TARGETS)
LONGEST_FILE = 2**20
LAST_BYTES = 2**16


@dataclass(frozen=True)
class PastRun:
    """A run folder, looked at from outside.

    Args:
        path: the folder.
        started: by its name, UTC.
        state: `running`, how it ended (`solved`, `env_steps`, `SIGINT`, ...), or `died` if it did so without a word.
        held: whether a living process holds it, or might.
        solved: whether it solved its task.
        env: the environment.
        algorithm: what learned.
        schedule: its kind.
        episodes: finished training episodes, None if not known.
        env_steps: environment steps, None if not known.
        seconds: how long it took, None if not known.
        bytes: what the folder takes on disk.
        touched: when its log was last written, in seconds since 1970.
        foreign: names in the folder that no run makes.
    """

    path: Path
    started: dt.datetime
    state: str
    held: bool
    solved: bool
    env: str
    algorithm: str
    schedule: str
    episodes: int | None
    env_steps: int | None
    seconds: float | None
    bytes: int
    touched: float
    foreign: tuple[str, ...]


def past_runs(base: Path) -> list[PastRun]:
    """All run folders directly inside `base`, the newest first. Links, and whatever is no run folder, are left out.

    Raises:
        NotFound: there is something else in the place of `base`.
        ResourceError: it must not be read.
    """
    try:
        names = sorted(base.iterdir(), reverse=True)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        kind = ResourceError if isinstance(error, PermissionError) else NotFound
        why = getattr(error, "strerror", None) or error
        raise kind(f"{visible(str(base), 200)} cannot be read ({why}), expected a folder of runs") from error
    return [look_at(path) for path in names if is_run_folder(path)]


def is_run_folder(path: Path) -> bool:
    """Return whether a run made this folder, and it still has its name."""
    if not NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    return all(_is_plain_file(path / name) for name in (LOCK, LOG))


def look_at(path: Path) -> PastRun:
    """Return what became of the run in a folder for which `is_run_folder` holds."""
    held = is_held(path) is not False
    end = _last_event(path / LOG)
    end = end if end.get("event") == "run_end" else {}
    status = _json(path / STATUS)
    counts = {**status, **end}
    settings = _toml(path / SETTINGS)
    state = "running" if held else str(end.get("reason") or "died")
    return PastRun(
        path=path,
        started=_time_of(path.name),
        state="failed" if state.startswith("failed") else state,
        held=held,
        solved=end.get("solved") is True or _has_solved_checkpoint(path / "checkpoints"),
        env=_text(settings, "task", "env"),
        algorithm=_text(settings, "algorithm", "name"),
        schedule=_text(settings, "schedule", "kind"),
        episodes=_whole(counts.get("episodes")),
        env_steps=_whole(counts.get("env_steps")),
        seconds=float(counts["seconds"]) if isinstance(counts.get("seconds"), int | float) else None,
        bytes=sum(_sizes(path)),
        touched=max(_time_of(path.name).timestamp(), (path / LOG).stat().st_mtime),
        foreign=tuple(sorted(entry.name for entry in path.iterdir() if not _is_ours(entry.name))),
    )


def remove(run: PastRun) -> None:
    """Remove a run folder for good. What is interrupted leaves a folder that can be removed again.

    Raises:
        RunFolderBusy: a process has taken it up meanwhile.
        RunFailed: it is no longer what it was, or it cannot be removed.
    """
    path = run.path
    try:
        if not is_run_folder(path) or any(not _is_ours(entry.name) for entry in path.iterdir()):
            raise RunFailed(f"{path} has changed meanwhile, and was left alone")
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The lock and the log go last: by them it is known as a run folder.
            for entry in sorted(path.iterdir(), key=lambda entry: (entry.name in (LOCK, LOG), entry.name == LOCK)):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            path.rmdir()
        finally:
            os.close(lock)
    except BlockingIOError:
        raise RunFolderBusy(f"{path} has been taken up by a run, and was left alone") from None
    except OSError as error:
        raise RunFailed(f"{path} cannot be removed: {error.strerror}") from error


def point_latest(base: Path) -> None:
    """Let `latest` lead to the newest run that is left, if it leads nowhere now."""
    latest = base / LATEST
    if not latest.is_symlink() or latest.exists():
        return
    left = next((path for path in sorted(base.iterdir(), reverse=True) if is_run_folder(path)), None)
    with contextlib.suppress(OSError):
        if left is None:
            latest.unlink()
        else:
            point_latest_to(left)


def _is_ours(name: str) -> bool:
    return name in CONTENTS or name.startswith((STAGED, f"{LOG}."))


def _is_plain_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _time_of(name: str) -> dt.datetime:
    match = NAME.fullmatch(name)
    try:
        return dt.datetime.strptime(match["time"] if match else "", "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    except ValueError:
        return dt.datetime.fromtimestamp(0, dt.UTC)


def _last_event(path: Path) -> Mapping[str, Any]:
    try:
        with open_plain(path) as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            lines = file.read().splitlines()
        event = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(read_bounded(path, LONGEST_FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_bounded(path, LONGEST_FILE).decode())
    except (OSError, ValueError, RecursionError):
        return {}


def _text(settings: Mapping[str, Any], table: str, key: str) -> str:
    value = settings.get(table)
    return str(value.get(key) or "") if isinstance(value, dict) else ""


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _has_solved_checkpoint(folder: Path) -> bool:
    manifests = folder.glob("*/manifest.json") if folder.is_dir() else ()
    bodies = (_json(manifest).get("body") for manifest in manifests)
    facts = (body.get("facts") for body in bodies if isinstance(body, dict))
    return any(isinstance(fact, dict) and fact.get("solved") is True for fact in facts)


def _sizes(path: Path) -> Iterator[int]:
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                yield (Path(folder) / name).lstat().st_size
