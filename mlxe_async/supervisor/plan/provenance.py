"""Where a run comes from, for `run.json`: versions, machine, command line, and the commit of the user's own code."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from mlxe_async.logs.reader import event_of
from mlxe_async.storage.files import read_bounded
from mlxe_async.storage.run_folder import RUN
from mlxe_async.storage.safe_text import REDACTED, is_secret, visible

LONGEST_FILE, LONGEST_RUN_JSON = 2**20, 4 * 2**20
LONGEST_ARGUMENT, MOST_ARGUMENTS = 1000, 200
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_WORD = re.compile(r"[\w.\-]+")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter."""
    names = ("mlxe_async", "numpy", "torch", "gymnasium", "uvloop", "pydantic", "structlog")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def host(cores: int) -> dict[str, Any]:
    """System, machine and cores."""
    return {"system": platform.platform(), "machine": platform.machine(), "cores": cores}


def invocation() -> dict[str, Any]:
    """`command`: the arguments of this process, without secrets; `commit`: of the repository it was started in."""
    try:
        folder = Path.cwd()
    except OSError:  # it is gone
        commit = None
    else:
        commit = commit_of(folder)
    return {"command": without_secrets(sys.orig_argv[:MOST_ARGUMENTS]), "commit": commit}


def without_secrets(arguments: list[str]) -> list[str]:
    """The same arguments, values under a secret name replaced: `a.password=x`, `--token=x`, and `--token` `x`."""
    shown, is_value = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = any(map(is_secret, _WORD.findall(argument)))
        if is_value:
            shown.append(REDACTED)
        else:
            shown.append(f"{visible(name)}={REDACTED}" if equals and secret else visible(argument, LONGEST_ARGUMENT))
        is_value = not is_value and secret and not equals and argument.startswith("-")
    return shown


def commit_of(folder: Path) -> str | None:
    """The commit that is checked out where `folder` is; None where that is no repository, or cannot be read.

    The repository's own files are read: git may not be installed, and takes longer.
    """
    try:
        marks = (parent / ".git" for parent in (folder, *folder.parents))
        found = next((mark for mark in marks if mark.exists()), None)
        return None if found is None else _head(found)
    except (OSError, ValueError):
        return None


def _head(mark: Path) -> str | None:
    """The commit of a `.git`: a folder, or in a further working tree a file that names one."""
    if mark.is_file():
        mark = mark.parent / _text(mark).removeprefix("gitdir:").strip()
    head = _text(mark / "HEAD")
    if not head.startswith("ref:"):
        return _checked(head)
    name, common = head.removeprefix("ref:").strip(), mark / "commondir"
    homes = [mark, mark / _text(common)] if common.is_file() else [mark]
    for home in homes:
        if (home / name).is_file():
            return _checked(_text(home / name))
    for home in homes:
        if (home / "packed-refs").is_file():
            for line in _text(home / "packed-refs").splitlines():
                commit, _, ref = line.partition(" ")
                if ref.strip() == name:
                    return _checked(commit)
    return None


def _checked(commit: str) -> str | None:
    return commit if _COMMIT.fullmatch(commit) else None


def _text(path: Path) -> str:
    return read_bounded(path, LONGEST_FILE).decode().strip()


def of_this_program(env: str) -> str:
    """That an environment is known here alone, as one that a notebook's cell registered, if it is so."""
    gymnasium = sys.modules.get("gymnasium")
    if env.partition(":")[0] != "__main__" and (gymnasium is None or env not in gymnasium.registry):
        return ""
    return (
        "; it is known to this program only, and made in other processes: give it by Supervisor(settings, env=Name), "
        'or write it into a file, as envs.py, and name it: task.env = "envs:Name"'
    )


def about_run(folder: Path) -> dict[str, Any]:
    """Return what `run.json` says of a run so far; empty if it cannot be read."""
    try:
        return event_of(read_bounded(folder / RUN, LONGEST_RUN_JSON)) or {}
    except OSError:
        return {}
