"""Problems of a set of values, as sentences a user can act on: key, got, expected, did you mean.

Works for any pydantic model, so that the `[algorithm]` table, which only the algorithm's own `Settings` can judge, is
reported in the same words as all others.
"""

from __future__ import annotations

import datetime as dt
import difflib
import functools
import json
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from mlxe_async.settings.translating import Written, answer
from mlxe_async.storage.safe_text import is_secret, visible

Path = tuple[str | int, ...]

SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        path: the key's place in the tree, table names first.
        message: what was got and what was expected, without the place.
        other: a second key that takes part in a contradiction.
    """

    path: Path
    message: str
    other: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The problem as plain JSON types, to cross a process boundary."""
        return asdict(self)

    @classmethod
    def from_json(cls, problem: Mapping[str, Any]) -> Problem:
        """The inverse of `to_json`."""
        other = problem["other"]
        return cls(tuple(problem["path"]), problem["message"], tuple(other) if other is not None else None)


def path_of(key: str) -> Path:
    """The path of a key such as `task.atari.stack`."""
    return tuple(key.split("."))


def dotted(path: Path) -> str:
    """A path as the user writes it: `task.wrappers[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return visible(text, 200)


def shown(value: Any, key: str = "") -> str:
    """A value as the user wrote it, on one line and not too long; nothing of it under a secret name."""
    if is_secret(key):
        return "a value not shown here"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dt.date | dt.time):
        return f"the date or time {value}"
    if isinstance(value, str):
        return visible(json.dumps(value[: SHOWN_CHARACTERS + 1], ensure_ascii=False), SHOWN_CHARACTERS)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, int) and abs(value) >= 10**SHOWN_CHARACTERS:
        return f"a number of {len(str(abs(value)))} digits"
    return visible(repr(value), SHOWN_CHARACTERS)


def closest(key: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, or None."""
    names = {name.lower(): name for name in known}
    initials = {"".join(word[0] for word in name.split("_") if word): name for name in names if "_" in name}
    if key.lower() in initials:  # "lr" is meant for learning_rate
        return names[initials[key.lower()]]
    typed = key[:64].lower().replace("-", "_")
    found = difflib.get_close_matches(typed, names, n=3, cutoff=0.5)
    # What shares the most letters does not always take the fewest mistakes: epsilon_mnx and epsilon_min.
    return names[min(found, key=lambda name: _mistakes(typed, name))] if found else None


def _mistakes(typed: str, meant: str) -> int:
    """The least number of letters left out, put in, exchanged or swapped with a neighbour (Damerau 1964)."""
    rows = [list(range(len(meant) + 1))]
    for i, letter in enumerate(typed, 1):
        row = [i]
        for j, wanted in enumerate(meant, 1):
            best = min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == meant[j - 2] and typed[i - 2] == wanted:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """The end of a sentence: `; did you mean "seed"?`, or nothing."""
    name = closest(key, known)
    return f'; did you mean "{name}"?' if name else ""


_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy")


def _other_word(key: Any, value: Any) -> str:
    """Return what a value of another package's means here, as the end of a sentence."""
    if key != "policy" or value not in _POLICIES:
        return ""
    return "; the network follows from the observations: leave it out, or give the sizes of layers, as [64, 64]"


def describe(
    error: ValidationError, model: type[BaseModel], prefix: Path = (), written: Written | None = None
) -> list[Problem]:
    """Every error of a failed validation as a problem.

    Args:
        error: what pydantic raised.
        model: the model that was validated; its fields are what could have been meant.
        prefix: where the model's table stands in the file, such as `("algorithm",)`.
        written: the settings, by which names of other packages are told.
    """
    schema = schema_of(model)
    found: dict[Problem, None] = {}
    for item in error.errors(include_url=False):
        for problem in _problems_of(item, schema, prefix, written or Written()):
            found.setdefault(problem)
    return list(found)


def dropped(
    table: Mapping[str, Any], model: type[BaseModel], prefix: Path, written: Written | None = None
) -> Iterator[Problem]:
    """Keys that a model would drop without a word, its own tables included; none of one that says `extra="allow"`.

    Args:
        table: what is to be validated.
        model: what is to validate it; one that forbids further keys says so itself.
        prefix: where the table stands in the file.
        written: the settings, by which names of other packages are told.
    """
    yield from _dropped(table, (model,), prefix, written or Written())


def _dropped(
    table: Mapping[str, Any], models: tuple[type[BaseModel], ...], prefix: Path, written: Written
) -> Iterator[Problem]:
    """Yield dropped keys of a table that any of several models may take: those that none of them knows."""
    drops = all(model.model_config.get("extra", "ignore") == "ignore" for model in models)
    fields = [item for model in models for item in model.model_fields.items()]
    own = _Spot(prefix, {}, {"properties": dict.fromkeys(name for name, _ in fields)})
    for key, value in table.items():
        path = (*prefix, key)
        found = [field for name, field in fields if key in _names(name, field)]
        if not found and drops:
            yield Problem(path, f"got {shown(value, key)}{_unknown(key, value, path, own, {}, written)}")
        inner = tuple(model for field in found for model in _models_in(field.annotation))
        for place, item in enumerate(value) if isinstance(value, list | tuple) else [(None, value)]:
            if inner and isinstance(item, Mapping):
                yield from _dropped(item, inner, path if place is None else (*path, place), written)


def _names(name: str, field: FieldInfo) -> set[str]:
    """The names by which a field may be written: its own and its aliases."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    first = (one.path[0] if isinstance(one, AliasPath) else one for one in (*choices, field.alias))
    return {name, *(one for one in first if isinstance(one, str))}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that an annotation names, also as items of a list, but not as values of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is not dict:
        for member in typing.get_args(annotation):
            yield from _models_in(member)


@functools.lru_cache(maxsize=64)
def schema_of(model: type[BaseModel]) -> Mapping[str, Any]:
    """A model's JSON schema, made once, as that of the whole tree takes 50 ms; it is not to be changed."""
    return model.model_json_schema()


@dataclass
class _Spot:
    """The place of an error: the user's path, the schema there, the schema of its table and the table's variants."""

    path: Path
    node: Mapping[str, Any]
    table: Mapping[str, Any]
    tag: str = ""
    tag_key: str = ""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _problems_of(item: Any, schema: Mapping[str, Any], prefix: Path, written: Written) -> list[Problem]:
    spot = _walk(tuple(item["loc"]), schema)
    path = prefix + spot.path
    key = str(path[-1]) if path else ""
    got = shown(item["input"], key)
    match item["type"]:
        case "extra_forbidden":
            return [Problem(path, f"got {got}{_unknown(key, item['input'], path, spot, schema, written)}")]
        case "missing":
            return [Problem(path, f"got nothing, expected {expected(spot.node, schema)}")]
        case "union_tag_invalid":
            tags = list(spot.node["discriminator"]["mapping"])
            got = item["ctx"]["tag"]
            choices = f"{_either([shown(tag) for tag in tags])}{did_you_mean(got, tags)}"
            return [
                Problem((*path, spot.node["discriminator"]["propertyName"]), f"got {shown(got)}, expected {choices}")
            ]
        case "expected":
            return [Problem(path, f"got {got}, expected {item['msg']}")]
        case "value_error" | "assertion_error":
            said = visible(item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, "), 300)
            return [Problem(path, f"{said}" if spot.node.get("type") == "object" else f"got {got}: {said}")]
    hint = ""
    if isinstance(item["input"], str):
        typed = item["input"].rpartition(".")[2]  # "nn.Tanh" is Tanh
        hint = _other_word(key, item["input"]) or did_you_mean(
            typed, [name for name in _choices(spot.node, schema) if isinstance(name, str)]
        )
    return [Problem(path, f"got {got}, expected {expected(spot.node, schema)}{hint}")]


REMOVED: dict[Path, str] = {
    ("learner", "compile"): "updates by torch's compiler took longer than those by default",
}
"""Keys that there were once, and why they are gone."""

_COMMANDS = {"suite": "compare", "sweep": "sweep"}
"""Tables of other files, and the command that takes such a file."""


_ENTRY = ("wrapper", "wrapper_class", "class", "cls", "name", "id", "type", "target", "entry_point")
_ARGUMENTS = ("args", "arguments", "params", "options", "wrapper_kwargs", "config")


def _unknown(key: str, value: Any, path: Path, spot: _Spot, schema: Mapping[str, Any], written: Written) -> str:
    """Say what to write in place of a key that there is not, as the end of a line, behind what was got."""
    table = path[:-1]
    if not table and key in _COMMANDS and key not in spot.table.get("properties", {}):
        return f", expected a run's settings; this file is one for python -m mlxe_async {_COMMANDS[key]}"
    if why := REMOVED.get(path):
        return f"; this key is gone: {why}; take it out"
    if table[-2:-1] == ("wrappers",):
        own = "entry" if key in _ENTRY else "kwargs" if key in _ARGUMENTS else ""
        if own:
            return f", expected {own}, as it is called in an entry of {dotted(table[:-1])}"
    owners = [tag for tag, variant in spot.variants.items() if key in variant.get("properties", {})]
    if owners:
        kinds = _either([shown(tag) for tag in owners])
        switch = f"{dotted((*table, spot.tag_key))} = {shown(spot.tag)}"
        return f"; there is no such key with {switch}: only {kinds} has it"
    known = list(spot.table.get("properties", {}))
    where = f"the keys of [{dotted(table)}]" if table else "the tables"
    others = [] if key in known else _tables_with(key, schema)
    if not others and (found := answer(key, value, written, known if table == ("algorithm",) else None)):
        return found.in_file
    hint = f'; did you mean "{others[0]}.{key}"?' if others else did_you_mean(key, known)
    is_a_slip = others or difflib.get_close_matches(key, known, 1, 0.8)
    if not is_a_slip and table != ("algorithm",) and _is_an_algorithms(key):
        hint = f'; did you mean "algorithm.{key}"?'
    return f", expected one of {where} ({', '.join(known)}){hint}"


def expected_at(model: type[BaseModel], path: Path) -> str:
    """Return what a key of a model may be, in words; empty if the model has no such key."""
    schema = schema_of(model)
    node: Mapping[str, Any] = schema
    for part in path:
        members = [_resolved(one, schema) for one in node.get("oneOf", [node])]
        owners = [one["properties"] for one in members if part in one.get("properties", {})]
        if not owners:
            return ""
        node = _resolved(owners[0][part], schema)
    return expected(node, schema)


def _is_an_algorithms(key: str) -> bool:
    """Return whether a built-in algorithm has a key; their modules are imported for it."""
    from mlxe_async.algorithms import REGISTRY, load_algorithm

    return any(key in load_algorithm(name).Settings.model_fields for name in REGISTRY)


def _tables_with(key: str, schema: Mapping[str, Any]) -> list[str]:
    tables = schema.get("properties", {})
    found = []
    for name, node in tables.items():
        members = [_resolved(member, schema) for member in node.get("oneOf", [node])]
        if any(key in member.get("properties", {}) for member in members):
            found.append(name)
    return found


def _walk(location: Path, schema: Mapping[str, Any]) -> _Spot:
    """Follow pydantic's location, which also holds the tags of unions, to what stands in a user's file."""
    spot = _Spot((), _resolved(schema, schema), {})
    for part in location:
        node = spot.node
        if isinstance(part, str) and "discriminator" in node:
            mapping = node["discriminator"]["mapping"]
            variants = {tag: _resolved({"$ref": reference}, schema) for tag, reference in mapping.items()}
            spot = _Spot(spot.path, variants.get(part, {}), {}, part, node["discriminator"]["propertyName"], variants)
            continue
        tables = [one for one in (_resolved(one, schema) for one in node.get("anyOf", [])) if "properties" in one]
        if isinstance(part, str) and len(tables) == 1:
            node = tables[0]  # a table, or something shorter in its place
        following: Mapping[str, Any] = {}
        if isinstance(part, int):
            following = node.get("items") or {}
        elif part in node.get("properties", {}):
            following = node["properties"][part]
        elif node.get("type") == "object" or "properties" in node:
            extra = node.get("additionalProperties")
            following = extra if isinstance(extra, Mapping) else {}
        else:
            continue
        spot = _Spot((*spot.path, part), _resolved(following, schema), node, spot.tag, spot.tag_key, spot.variants)
    return spot


def _resolved(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node without its reference, and without the `null` that only means "may be left out"."""
    while True:
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            target = schema.get("$defs", {}).get(name, {}) if name != "#" else schema
            node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
            continue
        members = [member for member in node.get("anyOf", []) if member.get("type") != "null"]
        if len(members) == 1:
            node = {**members[0], **{key: value for key, value in node.items() if key != "anyOf"}}
            continue
        return node


def _choices(node: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Any]:
    node = _resolved(node, schema)
    return [node["const"]] if "const" in node else list(node.get("enum", []))


def expected(node: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return what a JSON schema allows, in words."""
    node = _resolved(node, schema)
    if choices := _choices(node, schema):
        return _either([shown(choice) for choice in choices])
    if members := node.get("anyOf"):
        return _either([expected(member, schema) for member in members if member.get("type") != "null"])
    kind = node.get("type")
    if kind == "array":
        if "prefixItems" in node:
            return "a list of " + ", ".join(expected(member, schema) for member in node["prefixItems"])
        items = node.get("items") or {}
        counted = f" with at least {node['minItems']} item" if node.get("minItems") else ""
        counted += "s" if node.get("minItems", 0) > 1 else ""
        return f"a list{counted}, each {expected(items, schema)}" if items else f"a list{counted}"
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _range(node)
    if kind == "string":
        examples = node.get("examples")
        return "a text" + (f" such as {_either([shown(example) for example in examples])}" if examples else "")
    return {"boolean": "true or false", "object": "a table"}.get(str(kind), "a table" if "oneOf" in node else "a value")


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _range(node: Mapping[str, Any]) -> str:
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    parts = []
    if above is not None:
        parts.append(f"above {above:g}")
    elif low is not None:
        parts.append(f"{'from' if high is not None else 'of at least'} {_plain(low)}")
    if below is not None:
        parts.append(f"below {below:g}")
    elif high is not None:
        parts.append(f"{'to' if low is not None and above is None else 'up to'} {_plain(high)}")
    return " " + " ".join(parts) if parts else ""


def _plain(number: float) -> str:
    is_whole = isinstance(number, int) or (number.is_integer() and abs(number) < 1e15)
    return str(int(number)) if is_whole else f"{number:g}"
