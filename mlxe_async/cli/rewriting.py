"""A settings file of the user's with changed values, all else as it was: what `tune` and `sweep` write."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.analysis.tuning import edited
from mlxe_async.errors import SettingsError
from mlxe_async.settings import Settings, dump_settings, load_settings
from mlxe_async.settings.toml_places import find_places

_SEEN_FROM_THE_FILE = ("run.python_path", "task.reset_options", "task.test_options")
"""Keys whose values are paths as seen from the file's folder."""


def rewritten(
    file: str, overrides: Sequence[str], changes: Mapping[str, Any], wanted: Settings, folder: Path, by: str
) -> str:
    """Return the text of a file with some keys changed; written anew where it cannot be edited in place.

    Args:
        file: the settings file.
        overrides: those of the command line, which are written into it too.
        changes: values by key; None: the key is left out.
        wanted: the settings that the text is to mean.
        folder: where it will lie, as paths in it are seen from there.
        by: the command, for the comment on a key that was not there.
    """
    keys = dict.fromkeys([*(one.partition("=")[0].strip() for one in overrides), *changes])
    if folder.resolve() != Path(file).resolve().parent:  # from there, the same names would be of other files
        said = wanted.said
        parts = (key.split(".") for key in _SEEN_FROM_THE_FILE)
        keys |= dict.fromkeys(f"{table}.{name}" for table, name in parts if name in said[table])
    tree = wanted.model_dump(mode="json")
    values = {key: None if changes.get(key, "") is None else _value_in(tree, key) for key in keys}
    text = Path(file).read_text()
    body = edited(text, find_places(text), values, by)
    for text in (body, dump_settings(wanted, said_alone=True)):
        if _reads_as(text, wanted, folder):
            return text
    return dump_settings(wanted)


def commented(lines: Sequence[str]) -> str:
    """Return lines as comments of a TOML file."""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _reads_as(body: str, wanted: Settings, folder: Path) -> bool:
    """Return whether a text, as a file in its place, means these settings."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml", prefix=".rewritten-", dir=folder) as file:
        file.write(body)
        file.flush()
        try:
            found = load_settings(file.name, {"run.name": wanted.run.name})
        except SettingsError:
            return False
    return found.model_dump() == wanted.model_dump() and _said(found) == _said(wanted)


def _said(settings: Settings) -> dict[str, list[str]]:
    """The keys that were written but the run's name: what depends on them follows alike."""
    return {table: keys for table, keys in settings.said.items() if table != "run" and keys}


def _value_in(tree: Mapping[str, Any], key: str) -> Any:
    """Return what a tree of settings has under a dotted key; None where there is nothing."""
    found: Any = tree
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
