"""TOML files: their values with the line of each key; and files of other kinds than a run's, checked by a model."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mlxe_async.errors import SettingsError
from mlxe_async.settings.places import Places
from mlxe_async.settings.problems import Path, describe
from mlxe_async.settings.toml_places import TooMuch, find_places
from mlxe_async.storage.safe_text import visible

MAXIMUM_BYTES = 2**20

_POSITION = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_Model = TypeVar("_Model", bound=BaseModel)


class Unreadable(Exception):
    """The file gives no values at all; the message is a finished line."""


def load_file(source: str | os.PathLike[str], model: type[_Model]) -> tuple[_Model, Places]:
    """Read a TOML file of another kind, such as a sweep's, as strictly as a run's settings.

    Args:
        source: its path.
        model: of the whole file.

    Returns:
        The checked values, and the places by which later problems are told.

    Raises:
        SettingsError: with one line per problem: place, key, got, expected, and a guess at what was meant.
    """
    label = visible(os.fspath(source))
    try:
        raw, lines = read_toml(source, label)
    except Unreadable as error:
        raise SettingsError([str(error)]) from None
    places = Places(label, {path: f"{label}:{line}" for path, line in lines.items()})
    try:
        return model.model_validate(raw), places
    except ValidationError as error:
        found = describe(error, model)
        raise SettingsError([places.line(problem) for problem in found]) from None


def read_toml(source: str | os.PathLike[str], label: str) -> tuple[dict[str, Any], dict[Path, int]]:
    """Return the values of a TOML file, and the line of each key.

    Args:
        source: its path.
        label: how it is called in messages.

    Raises:
        Unreadable: it gives no values.
    """
    text = _text(source, label)
    try:
        places = find_places(text)
        return tomllib.loads(text), places
    except TooMuch as error:
        raise Unreadable(f"{label}:{error.line}: got {error}") from None
    except RecursionError:
        raise Unreadable(f"{label}:1: got values nested too deep to be read, expected at most a few levels") from None
    except ValueError as error:
        raise Unreadable(_syntax_problem(label, text, str(error))) from None


def _text(source: str | os.PathLike[str], label: str) -> str:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Unreadable(f"{label}:1: cannot be read ({reason}), expected a settings file") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable(f"{label}:1: got something that is not a regular file, expected a settings file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"{label}:1: cannot be read ({error.strerror}), expected a settings file") from None
    finally:
        os.close(descriptor)
    if len(data) > MAXIMUM_BYTES:
        raise Unreadable(f"{label}:1: got a file of more than {MAXIMUM_BYTES} bytes, expected at most that many")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise Unreadable(f"{label}:{line}:{column}: got a byte that is not UTF-8, expected UTF-8 text") from None


def _syntax_problem(label: str, text: str, said: str) -> str:
    match = _POSITION.search(said)
    line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    if match and match["line"]:
        line, column = int(match["line"]), int(match["column"])
    reason = visible(_POSITION.sub("", said), 200)
    return f"{label}:{line}:{column}: got text that is not TOML, {reason[:1].lower()}{reason[1:]}"
