"""Write a tree of settings back as TOML text, and the JSON schema of what a file may hold."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from mlxe_async.settings.effects import idle as without_effect
from mlxe_async.settings.model import Settings
from mlxe_async.settings.problems import Path, schema_of
from mlxe_async.storage.safe_text import redact

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def as_tables(settings: Settings, *, said_alone: bool = False) -> dict[str, Any]:
    """The tree as plain mappings and lists, without the keys that are not set; or `said_alone`, those as written."""
    tables: dict[str, Any] = _plain(settings.model_dump(exclude_unset=said_alone))
    tables["schedule"] = {"kind": settings.schedule.kind, **tables.get("schedule", {})}  # the kind comes first
    return tables


def dump_settings(
    settings: Settings, *, hide_secrets: bool = False, idle: Collection[Path] = (), said_alone: bool = False
) -> str:
    """TOML text that `load_settings` reads back as an equal tree: every key that has an effect, defaults included.

    Args:
        settings: the tree.
        said_alone: without the defaults, so that those that follow from algorithm and task follow again.
        idle: further keys that have no effect, such as those of `[algorithm]`.
        hide_secrets: leave out texts under names such as `api_key` or `password` in the free tables; what is read
            back is then valid, but not equal.
    """
    tables = as_tables(settings, said_alone=said_alone)
    for path in {*idle, *(problem.path for problem in without_effect(settings))}:
        *above, key = map(str, path)
        functools.reduce(lambda inner, part: inner.get(part, {}), above, tables).pop(key, None)
    tables = {name: table for name, table in tables.items() if table or not said_alone}
    if hide_secrets:
        tables = redact(tables)
    return "\n".join("\n".join((f"[{name}]", *_lines(table), "")) for name, table in tables.items())


def settings_schema(algorithms: Mapping[str, type[BaseModel]] | None = None) -> dict[str, Any]:
    """The JSON schema of a settings file.

    Args:
        algorithms: the `Settings` of the algorithms that `[algorithm]` may name, by name; the keys of any other are
            open. Without it the keys of all are.
    """
    schema = _untitled(schema_of(Settings))
    kind = schema["$defs"]["IsSchedule"]  # what a schedule is that does not say its kind
    kind["required"] = [key for key in kind["required"] if key != "kind"]
    if algorithms:
        schema["$defs"].update(_untitled(_algorithms(schema["$defs"]["AlgorithmTable"], algorithms)))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _algorithms(table: dict[str, Any], algorithms: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Definitions: one for each algorithm's table, one for those that are not known, and their union."""
    definitions: dict[str, Any] = {}
    name = table["properties"]["name"]
    for known, model in algorithms.items():
        own = model.model_json_schema(ref_template=f"#/$defs/{known}.{{model}}")
        definitions.update({f"{known}.{key}": value for key, value in own.pop("$defs", {}).items()})
        own["properties"] = {"name": {**name, "const": known}, **own["properties"]}
        own["required"] = [*own.get("required", []), *([] if known == name["default"] else ["name"])]
        definitions[known] = own
    other = {**name, "pattern": ":"}
    definitions["another"] = {**table, "properties": {"name": other}, "required": ["name"]}
    variants = [{"$ref": f"#/$defs/{variant}"} for variant in (*algorithms, "another")]
    return {**definitions, "AlgorithmTable": {"description": table["description"], "oneOf": variants}}


def _untitled(node: Any) -> Any:
    """Return a copy without the titles that pydantic makes of names: they only repeat them."""
    if isinstance(node, dict):
        return {key: _untitled(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    return [_untitled(item) for item in node] if isinstance(node, list) else node


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        yield f"{_key(key)} = {toml_value(value)}"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def toml_value(value: Any) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(_lines(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        return _text(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
