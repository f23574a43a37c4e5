"""What the settings tests share."""

import types
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from mlxe_async.errors import SettingsError
from mlxe_async.settings import (
    IaSchedule,
    IsSchedule,
    IstbSchedule,
    OaSchedule,
    SerialSchedule,
    Settings,
    load_settings,
)

VARIANTS = {"is": IsSchedule, "ia": IaSchedule, "istb": IstbSchedule, "oa": OaSchedule, "serial": SerialSchedule}


def write(folder: Path, text: str | bytes, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def problems_of(source, overrides=()) -> list[str]:
    """The lines of the refusal, without the folder in front of the file's name."""
    with pytest.raises(SettingsError) as refused:
        load_settings(source, overrides)
    folder = f"{Path(source).parent}/" if isinstance(source, str | Path) else ""
    return [line.replace(folder, "") for line in refused.value.problems]


def minimal(**tables) -> dict:
    return {"task": {"env": "CartPole-v1"}, **tables}


def keys() -> list[tuple[str, str, typing.Any]]:
    """Every key of every table: table, key, annotation without `None`."""
    found = []
    for table, about in Settings.model_fields.items():
        models = VARIANTS.values() if table == "schedule" else [about.annotation]
        for model in models:
            assert isinstance(model, type)
            assert issubclass(model, BaseModel)
            for key, field in model.model_fields.items():
                if (table, key) not in {(t, k) for t, k, _ in found}:
                    found.append((table, key, _without_none(field.annotation)))
    return found


def _without_none(annotation):
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        return members[0] if len(members) == 1 else annotation
    return annotation


def is_plain(annotation, kind: type) -> bool:
    return annotation is kind or (
        typing.get_origin(annotation) is typing.Annotated and is_plain(typing.get_args(annotation)[0], kind)
    )


def tree_with(table: str, key: str, value) -> dict:
    """A minimal tree in which one key has a value; `kind` is set so that the key belongs there."""
    tree = minimal()
    if table == "schedule" and key not in IsSchedule.model_fields:
        tree["schedule"] = {"kind": next(kind for kind, model in VARIANTS.items() if key in model.model_fields)}
    tree.setdefault(table, {})[key] = value
    return tree
