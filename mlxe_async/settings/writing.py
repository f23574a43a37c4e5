"""From a tree of settings back to TOML text, and to the JSON schema of what a file may hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from mlxe_async.logs.safe import redact
from mlxe_async.settings.model import Settings

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def as_tables(settings: Settings) -> dict[str, Any]:
    """The tree as plain mappings and lists, without the keys that are not set."""
    tables: dict[str, Any] = _plain(settings.model_dump())
    tables["schedule"] = {"kind": settings.schedule.kind, **tables["schedule"]}  # who waits for whom comes first
    return tables


def dump_settings(settings: Settings, *, hide_secrets: bool = False) -> str:
    """TOML text with every key, defaults included, that `load_settings` reads back as an equal tree.

    Args:
        settings: the tree.
        hide_secrets: leave out texts under names such as `api_key` or `password` in the free tables; what is read
            back is then valid, but not equal.
    """
    tables = as_tables(settings)
    if hide_secrets:
        tables = redact(tables)
    return "\n".join("\n".join((f"[{name}]", *_lines(table), "")) for name, table in tables.items())


def settings_schema(algorithm: type[BaseModel] | None = None) -> dict[str, Any]:
    """The JSON schema of a settings file.

    Args:
        algorithm: the `Settings` of the algorithm whose keys `[algorithm]` then has; without it they are left open.
    """
    schema = Settings.model_json_schema()
    if algorithm is not None:
        own = algorithm.model_json_schema(ref_template="#/$defs/{model}")
        schema["$defs"].update(own.pop("$defs", {}))
        own["properties"] = {"name": schema["$defs"]["AlgorithmTable"]["properties"]["name"], **own["properties"]}
        schema["$defs"]["AlgorithmTable"] = own
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        yield f"{_key(key)} = {_value(value)}"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(_lines(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return _text(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
