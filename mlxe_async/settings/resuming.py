"""Rules for keys that have another value when a run goes on from a checkpoint.

| class | what happens |
|---|---|
| cosmetic | it is different from now on; what is learned does not depend on it |
| allowed | it is different from now on, which the log says; the run is no longer that of its first settings |
| forbidden | the run does not go on: what was learned is of no use, or is something else |

Each field says its class, see `forms.key`. The keys of `[algorithm]` are its own: those whose field says
`json_schema_extra={"on_resume": "forbidden"}` are forbidden, all others are allowed, as long as the network keeps its
shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mlxe_async.settings.model import Settings
from mlxe_async.settings.problems import Path
from mlxe_async.settings.writing import as_tables, toml_value
from mlxe_async.storage.safe_text import redact, visible

Effect = Literal["cosmetic", "allowed", "forbidden"]


def _classes() -> Iterator[tuple[tuple[str, str], Effect]]:
    for table, about in Settings.model_fields.items():
        for model in get_args(about.annotation) or (about.annotation,):
            for name, field in model.model_fields.items():
                if isinstance(field.json_schema_extra, dict):
                    yield (table, name), field.json_schema_extra.get("on_resume", "allowed")


CLASSES: dict[tuple[str, str], Effect] = dict(_classes())
"""Class of every key but those of `[algorithm]`, as its field says."""


@dataclass(frozen=True)
class Change:
    """A key that is different now.

    Args:
        path: the key.
        old: its value in the run so far; None where it was not set.
        new: its value from now on.
        kind: what is thought of that.
    """

    path: tuple[str, str]
    old: Any
    new: Any
    kind: Effect

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {_said(self.old)} -> {_said(self.new)}"


def changes(
    old: Settings, new: Settings, forbidden: Collection[str] = (), idle: Collection[Path] = ()
) -> Iterator[Change]:
    """All that is different, key by key; secrets are not compared.

    Args:
        old: settings of the run so far, all defaults written out.
        new: settings it is to go on with, likewise.
        forbidden: keys of `[algorithm]` that must stay.
        idle: keys that have no effect now; a run's settings need not tell of them.
    """
    before, after = redact(as_tables(old)), redact(as_tables(new))
    for table in dict.fromkeys((*before, *after)):
        was, now = before.get(table, {}), after.get(table, {})
        # A schedule of another kind has other keys; their coming and going says no more than the kind does.
        both = table == "schedule" and was["kind"] != now["kind"]
        for key in dict.fromkeys((*was, *now)):
            is_told = key in was and key in now
            if was.get(key) == now.get(key) or (not is_told and (both or (table, key) in idle)):
                continue
            yield Change((table, key), was.get(key), now.get(key), _class_of(table, key, forbidden))


def _class_of(table: str, key: str, forbidden: Collection[str]) -> Effect:
    if table == "algorithm" and key != "name":
        return "forbidden" if key in forbidden else "allowed"
    return CLASSES[table, key]


def forbidden_fields(fields: Mapping[str, Any]) -> list[str]:
    """Names of the fields of an algorithm's `Settings` that say of themselves that they must stay."""
    return [name for name, field in fields.items() if (field.json_schema_extra or {}).get("on_resume") == "forbidden"]


def _said(value: Any) -> str:
    return "nothing" if value is None else visible(toml_value(value), 60)
