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


def rewritten(
    file: str, overrides: Sequence[str], changes: Mapping[str, Any], wanted: Settings, folder: Path, by: str
) -> str:
    """Return the text of a file with some keys changed; written out whole where it cannot be edited in place.

    Args:
        file: the settings file.
        overrides: those of the command line, which are written into it too.
        changes: values by key; None: the key is left out.
        wanted: the settings that the text is to mean.
        folder: where it will lie, as paths in it are seen from there.
        by: the command, for the comment on a key that was not there.
    """
    keys = dict.fromkeys([*(one.partition("=")[0].strip() for one in overrides), *changes])
    tree = wanted.model_dump(mode="json")
    values = {key: None if changes.get(key, "") is None else _value_in(tree, key) for key in keys}
    text = Path(file).read_text()
    body = edited(text, find_places(text), values, by)
    return body if _reads_as(body, wanted, folder) else dump_settings(wanted)


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
    return found.model_dump() == wanted.model_dump()


def _value_in(tree: Mapping[str, Any], key: str) -> Any:
    """Return what a tree of settings has under a dotted key; None where there is nothing."""
    found: Any = tree
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
