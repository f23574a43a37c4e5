"""Every key of a settings file in words: what it is when left out, what it may be, and what it does."""

from __future__ import annotations

import pkgutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxe_async.cli.arguments import WIDTH
from mlxe_async.settings import settings_schema, toml_value
from mlxe_async.settings.problems import expected, schema_of

_DEFINED = "#/$defs/"
_BESIDE = {"distributions", "interface", "optional_verbs"}  # files beside the papers


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
            yield from _table_inside(f"{table}.{key}", about, schema, brief=only == table)
        if table == "algorithm":
            names = algorithm_names()
            more = "Each has keys of its own, and may have other defaults for keys of other tables"
            yield from _told("...", f"{more}: see --help {', --help '.join(names)}.")
        yield ""


def inner_names() -> list[str]:
    """Tables inside tables that have a page of their own, such as `task.stages`."""
    schema = settings_schema()
    return [
        f"{table}.{key}"
        for table, node in schema["properties"].items()
        if "$ref" in node
        for key, about in _found(node, schema)["properties"].items()
        if _has_own_page(about) and _of(about, schema) is not None
    ]


def inner_explained(name: str) -> Iterator[str]:
    """Lines for a table inside another one, such as `task.stages`."""
    schema, (table, _, key) = settings_schema(), name.partition(".")
    about = _found(schema["properties"][table], schema)["properties"][key]
    yield from _table_inside(name, about, schema, brief=False)


def algorithm_explained(name: str) -> Iterator[str]:
    """Lines for the keys of an algorithm, and for what it recommends for those of other tables.

    Raises:
        SettingsError: there is no such algorithm.
    """
    from mlxe_async.algorithms import load_algorithm

    algorithm = load_algorithm(name)
    schema = schema_of(algorithm.Settings)
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


def key_explained(name: str) -> list[str]:
    """Lines on a key, a kind of schedule or a name of another package: which table has it, and what it is; or none."""
    from mlxe_async.algorithms import NAMES_ELSEWHERE, REGISTRY, load_algorithm, meant_by
    from mlxe_async.settings.synonyms import ABSENT, SYNONYMS

    plain = name.lower().replace("-", "_")
    only, _, key = name.rpartition(".")
    schema, lines = settings_schema(), list[str]()
    for table, node in schema["properties"].items():
        for variant in [_found(one, schema) for one in node.get("oneOf", [node])]:
            kind = variant["properties"].get("kind", {}).get("const")
            if kind == name:
                lines += [
                    f"[{table}]",
                    *_told(f"kind = {toml_value(kind)}", variant["properties"]["kind"]["description"]),
                ]
            about = variant["properties"].get(key)
            if about is not None and only in ("", table) and key != "name" and f"[{table}]" not in lines:
                lines += [f"[{table}]", *_keys({key: about}, variant, schema)]
    for algorithm in REGISTRY if only in ("", "algorithm") else ():
        own = schema_of(load_algorithm(algorithm).Settings)
        if key in own["properties"]:
            told = list(_keys({key: own["properties"][key]}, own, own))
            lines += [f"[algorithm]  of {algorithm}", *told]
    if not lines and plain in SYNONYMS:
        lines = [f"{name} is called {' or '.join(SYNONYMS[plain])} here."]
        lines += [line for one in SYNONYMS[plain] for line in key_explained(one)]
    if not lines and plain in ABSENT:
        lines = [f"There is no key {name} here: {ABSENT[plain]}."]
    if not lines and plain in NAMES_ELSEWHERE and (meant := meant_by(name))[0]:
        beside = f", {meant[1]}," if meant[1] else ""
        lines = [f"{name} is {meant[0]}{beside} here; --help {meant[0]} lists its keys."]
    return lines


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
    members = [one for one in about.get("anyOf", [about]) if one.get("type") != "null"]
    node = _found(members[0], schema) if len(members) == 1 and "$ref" in members[0] else {}
    return node if "properties" in node else None


def _of(about: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The table that a key holds, or each item of its list; None if it is neither."""
    return _inner(about, schema) or _inner(about.get("items") or {}, schema)


def _has_own_page(about: Mapping[str, Any]) -> bool:
    """Lists of tables, and tables that may be left out whole, are explained apart from their own table."""
    return "items" in about or "anyOf" in about


def _table_inside(name: str, about: Mapping[str, Any], schema: Mapping[str, Any], *, brief: bool) -> Iterator[str]:
    """Lines for what a key of a table holds, if that is a table; `brief`: where there is more of it."""
    if (inner := _of(about, schema)) is None:
        return
    head = f"[[{name}]]" if "items" in about else f"[{name}]"
    if brief and _has_own_page(about):
        yield f"{head}  see --help {name}"
        return
    yield from textwrap.wrap(f"{head}  {about.get('description', inner['description'])}", WIDTH)
    yield from _keys(inner["properties"], inner, schema)


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
