"""Every key that a settings file may hold, as the schema has it."""

from __future__ import annotations

from typing import Any, NamedTuple

from mlxe_async.settings import settings_schema


class Key(NamedTuple):
    """One key.

    Args:
        table: the table it stands in, as its head in the file says: `task`, `task.atari`.
        name: the key itself.
        about: its JSON schema.
        beside: what else that table must say for the key to be known, such as the kind of schedule.
    """

    table: str
    name: str
    about: dict[str, Any]
    beside: dict[str, Any]


def known_keys() -> list[Key]:
    """All keys but those of an algorithm, which only the algorithm knows."""
    schema = settings_schema()
    definitions = schema.get("$defs", {})

    def resolved(node):
        while "$ref" in node:
            node = definitions[node["$ref"].rsplit("/", 1)[1]]
        return node

    found: dict[tuple[str, str], Key] = {}

    def enter(table, node):
        choices = [resolved(node), *map(resolved, node.get("oneOf", node.get("anyOf", [])))]
        for choice in choices:
            properties = choice.get("properties", {})
            kind = properties.get("kind", {}).get("const")
            for name, about in properties.items():
                if "properties" in resolved(about):
                    enter(f"{table}.{name}", about)
                else:
                    beside = {"kind": kind} if kind and name != "kind" else {}
                    found.setdefault((table, name), Key(table, name, about, beside))

    for table, node in schema["properties"].items():
        if table != "algorithm":
            enter(table, node)
    return list(found.values())


def kinds_of(about: dict[str, Any]) -> set[str]:
    """The JSON types that a key takes, without the `null` that only says it may be left out."""
    return {kind["type"] for kind in (about, *about.get("anyOf", [])) if "type" in kind} - {"null"}
