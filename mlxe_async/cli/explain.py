"""Every key of a settings file in words: what it is when left out, what it may be, and what it does."""

from __future__ import annotations

import pkgutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxe_async.cli.arguments import WIDTH
from mlxe_async.settings import settings_schema, toml_value
from mlxe_async.settings.problems import expected

_DEFINED = "#/$defs/"
_BESIDE = {"distributions", "interface"}  # files beside the papers


def table_names() -> list[str]:
    """The tables of a settings file."""
    return list(settings_schema()["properties"])


def settings_explained(only: str | None = None) -> Iterator[str]:
    """Lines for one table, or for all; numpy and torch stay out of it, and with them the algorithms' own keys."""
    schema = settings_schema()
    for table, node in schema["properties"].items():
        if only not in (None, table):
            continue
        yield from textwrap.wrap(f"[{table}]  {node['description']}", WIDTH)
        variants = [_found(variant, schema) for variant in node.get("oneOf", [node])]
        yield from _keys(_common(variants), variants[0], schema)
        for variant in variants if len(variants) > 1 else []:
            own = {key: about for key, about in variant["properties"].items() if key not in _common(variants)}
            kind = own.pop("kind")
            left_out = "" if "kind" in variant["required"] else ", also when left out"
            yield from _told(f"kind = {toml_value(kind['const'])}{left_out}", kind["description"])
            yield from _keys(own, variant, schema)
        for key, about in variants[0]["properties"].items():
            if (inner := _inner(about, schema)) is not None:
                yield from textwrap.wrap(f"[{table}.{key}]  {about.get('description', inner['description'])}", WIDTH)
                yield from _keys(inner["properties"], inner, schema)
        if table == "algorithm":
            names = algorithm_names()
            more = "Each has keys of its own, and may have other defaults for keys of other tables"
            yield from _told("...", f"{more}: see --help {', --help '.join(names)}.")
        yield ""


def algorithm_explained(name: str) -> Iterator[str]:
    """Lines for the keys of an algorithm, and for what it recommends for those of other tables.

    Raises:
        SettingsError: there is no such algorithm.
    """
    from mlxe_async.algorithms import load_algorithm

    algorithm = load_algorithm(name)
    schema = algorithm.Settings.model_json_schema()
    yield from textwrap.wrap(f"[algorithm]  {' '.join(schema.get('description', '').split())}", WIDTH)
    yield f"  name = {toml_value(name)}"
    yield from _keys(schema["properties"], schema, schema)
    recommended: Mapping[str, Mapping[str, Any]] = getattr(algorithm, "defaults", {})
    if recommended:
        yield ""
        yield "With this algorithm, keys of other tables that are left out are these, where"
        yield "the schedule has them; a task may lead to others, which advise ENV tells:"
    for table, values in recommended.items():
        yield f"[{table}]"
        yield from (f"  {key} = {toml_value(value)}" for key, value in values.items())


def algorithm_names() -> list[str]:
    """The built-in algorithms, each in a file or folder of its name; found without importing what they need."""
    folder = Path(__file__).parents[1] / "algorithms"
    files = {module.name for module in pkgutil.iter_modules([str(folder)]) if not module.ispkg} - _BESIDE
    return sorted(files | {paper.parent.name for paper in folder.glob("*/paper.py")})


def _found(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema["$defs"][node["$ref"].removeprefix(_DEFINED)]
    return found


def _common(variants: list[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = (variant["properties"] for variant in variants)
    return {key: about for key, about in first.items() if all(other.get(key) == about for other in others)}


def _inner(about: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The table that a key holds, None if it holds a value."""
    node = _found(about, schema) if "$ref" in about else {}
    return node if "properties" in node else None


def _keys(keys: Mapping[str, Any], table: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    for key, about in keys.items():
        if _inner(about, schema) is not None:
            continue
        kind = expected(about, schema)
        if key in table.get("required", []):
            head = f"{key}  (must be given: {kind})"
        elif about.get("default", {}) is None:
            head = f"{key}  (may be left out; {kind})"
        else:
            head = f"{key} = {toml_value(about.get('default', {}))}  ({kind})"
        yield from _told(head, about.get("description", ""))


def _told(head: str, sentence: str) -> Iterator[str]:
    yield from textwrap.wrap(f"{head}  {sentence}", WIDTH, initial_indent="  ", subsequent_indent="      ")
