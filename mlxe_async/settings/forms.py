"""Forms that values of settings take: names, paths, entry points, counts and limits, each with its range."""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from mlxe_async.storage.files import PLAIN_NAME

LARGEST = 2**63 - 1
LONGEST = 512  # letters of a name; what is to be imported by a longer one cannot be

_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_ENTRY = re.compile(rf"(?P<module>{_DOTTED}):{_DOTTED}", re.ASCII)
_ENV_ID = re.compile(rf"(?:(?P<module>{_DOTTED}):)?(?:[\w:-]+/)?[\w:.-]+", re.ASCII)
_ALGORITHM = re.compile(rf"[A-Za-z_]\w*|(?P<module>{_DOTTED}):{_DOTTED}", re.ASCII)
_DEVICE = re.compile(r"cpu|cuda(?::\d{1,3})?", re.ASCII)


class Table(BaseModel):
    """A table of the settings file: frozen, strict, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _read_whole_numbers(cls, raw: Any) -> Any:
        return with_whole_numbers(cls, raw) if isinstance(raw, dict) else raw


def with_whole_numbers(model: type[BaseModel], table: Mapping[str, Any]) -> dict[str, Any]:
    """The table where a number such as `1e5`, a fraction to TOML, is whole where the model wants a whole one."""
    fields = model.model_fields
    return {key: _whole(value, fields[key].annotation) if key in fields else value for key, value in table.items()}


def _whole(value: Any, annotation: Any) -> Any:
    kind, members = typing.get_origin(annotation), typing.get_args(annotation)
    if kind is Annotated:
        return _whole(value, members[0])
    if kind in (types.UnionType, typing.Union):
        several = [member for member in members if member is not type(None)]
        return _whole(value, several[0]) if len(several) == 1 else value
    if kind is tuple and isinstance(value, list | tuple):
        return [_whole(item, members[0]) for item in value] if members[1:] == (...,) else value
    is_whole = annotation is int and type(value) is float and value.is_integer() and abs(value) <= LARGEST
    return int(value) if is_whole else value


def _matching(pattern: re.Pattern[str], wanted: str) -> AfterValidator:
    """A check that a text has a form; a module it names must not be the standard library's."""

    def check(text: str) -> str:
        match = pattern.fullmatch(text)
        if not match:
            raise PydanticCustomError("expected", "{wanted}", {"wanted": wanted})
        if len(text) > LONGEST:
            reason = f"{wanted}, of at most {LONGEST} letters"
            raise PydanticCustomError("expected", "{wanted}", {"wanted": reason})
        module = (match.groupdict().get("module") or "").partition(".")[0]
        if module in sys.stdlib_module_names or module == "builtins":
            reason = (
                f'{wanted}, from a package of yours or an installed one, not from the standard library\'s "{module}"'
            )
            raise PydanticCustomError("expected", "{wanted}", {"wanted": reason})
        return text

    return AfterValidator(check)


def _folder(text: str) -> str:
    if not text or text[0] == "~" or "$" in text or not text.isprintable() or len(text) > 1024:
        wanted = "a folder's path, written out (~ and $ are not expanded) and without control characters"
        raise PydanticCustomError("expected", "{wanted}", {"wanted": wanted})
    return text


def as_registered(name: str) -> str:
    """The name of an algorithm, of which papers and other packages write the letters large: PPO, Q-Learning."""
    plain = name.lower().replace("-", "_")
    if ":" in name or name == plain:
        return name
    from mlxe_async.algorithms import REGISTRY  # brings numpy, for which no other mistake waits

    return plain if plain in REGISTRY else name


RunName = Annotated[
    str,
    _matching(PLAIN_NAME, 'a name of at most 64 letters, digits, "_", "-" and ".", starting with a letter or a digit'),
]
Folder = Annotated[str, AfterValidator(_folder)]
Entry = Annotated[str, _matching(_ENTRY, 'a class written "package.module:Class"')]
EnvId = Annotated[str, _matching(_ENV_ID, 'an environment such as "CartPole-v1" or "package.module:Name-v0"')]
AlgorithmName = Annotated[
    str, AfterValidator(as_registered), _matching(_ALGORITHM, 'an algorithm such as "mlxe" or "package.module:Class"')
]
PartName = Annotated[str, Field(max_length=1000)]
ActionName = Annotated[str, Field(min_length=1, max_length=100)]
Pixels = Annotated[int, Field(ge=0, le=1024)]
Device = Annotated[str, _matching(_DEVICE, '"cpu", "cuda" or "cuda:N"')]
Count = Annotated[int, Field(ge=1, le=10**15)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Limit = Annotated[float, Field(ge=0.01, le=86_400)]

Extra = dict[str, JsonValue]
COSMETIC: Extra = {"on_resume": "cosmetic"}
ALLOWED: Extra = {}
FORBIDDEN: Extra = {"on_resume": "forbidden"}
"""Rule for a key that has another value when a run goes on, see `resuming`; a key of a table inside has none."""


def key(default: Any, text: str, on_resume: Extra | None = None, **limits: Any) -> Any:
    """A key: its default, what a higher value does, whether another value may go on, and pydantic's limits."""
    return Field(default, description=text, json_schema_extra=on_resume, **limits)


def listed(text: str, on_resume: Extra | None = None, default: tuple[Any, ...] = (), **limits: Any) -> Any:
    """A key for a TOML list, which is kept as a tuple (`strict` would refuse the list itself, not its items)."""
    return key(default, text, on_resume, strict=False, **limits)
