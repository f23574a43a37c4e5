"""Whose code settings name: a run's folder from elsewhere has none of it run, unless the caller trusts it by name.

Settings name code by `task.env`, `task.wrappers`, `algorithm.name` and `run.python_path`. Code of one's own runs freely
from a settings file that one starts. A folder is something else: it may come from anybody, and looks like one's own.
What this user's own runs name is sealed (see `storage.seals`); all else takes a word of the caller's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.errors import Untrusted
from mlxe_async.settings.loading import Overrides, load_settings
from mlxe_async.settings.model import Settings
from mlxe_async.settings.problems import dotted
from mlxe_async.storage.safe_text import redact, visible
from mlxe_async.storage.seals import fits, seal_in, sealed

Trusted = Sequence[str | os.PathLike[str]]

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_PLAIN_WRAPPERS = "gymnasium.wrappers"
_WRITES_FILES = "RecordVideo"
"""The wrapper of gymnasium's that writes where it is told to."""
_IMPORTING_IDS = {"GymV21Environment-v0": "shimmy", "GymV26Environment-v0": "shimmy"}
"""Ids of gymnasium's own whose arguments name a module to import."""


def settings_of_run(folder: Path, overrides: Overrides = (), trust: Trusted = ()) -> Settings:
    """The settings that a run's folder holds, with no code in reach but what the caller may want to run.

    Args:
        folder: of the run.
        overrides: the caller's own words, which need no trust.
        trust: modules by name, and folders by path, whose code may run.

    Raises:
        SettingsError: they cannot be read.
        Untrusted: they name code that is neither built in nor this user's own nor trusted.
    """
    source = folder / "settings.toml"
    found = load_settings(source, of_run=True)
    if fits(seal_in(folder), code_of(found)):
        return load_settings(source, overrides, of_run=True)
    needed = Needed(found, trust)
    needed.refuse(f"{visible(str(folder), 300)} was made elsewhere, or before runs were sealed")
    settings = load_settings(source, overrides, of_run=True)
    paths = settings.run.python_path
    if paths == found.run.python_path:  # otherwise the caller has named folders of his own
        paths = needed.folders
    same = settings.model_copy(update={"run": settings.run.model_copy(update={"python_path": paths})})
    same._places = settings.places
    return same


class Needed:
    """Finds the modules that settings name, and those of them, and of their folders, that are trusted.

    Args:
        settings: from elsewhere.
        trust: modules by name and folders by path.
    """

    def __init__(self, settings: Settings, trust: Trusted) -> None:
        self._modules = {str(one) for one in trust if isinstance(one, str) and _MODULE.fullmatch(one)}
        self._folders = [Path(one).resolve() for one in trust if str(one) not in self._modules]
        self._path = [Path(one) for one in settings.run.python_path]
        self._named = list(foreign_code(settings))

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of `run.python_path` that code may come from: those that are trusted, or hold what is."""
        wanted = {place for _, _, module in self._named if self._is_named(module) and (place := self._place(module))}
        return tuple(str(one) for one in self._path if self._is_within(one) or one in wanted)

    def refuse_folders(self, why: str) -> None:
        """See that each folder of `run.python_path` is trusted, too: for callers that cannot leave one out.

        Raises:
            Untrusted: one is not; the message says how to trust it.
        """
        self.refuse(why)
        others = [one for one in map(str, self._path) if one not in self.folders]
        if others:
            raise _untrusted(why, [(f"run.python_path[{self._path.index(Path(one))}]", one, one) for one in others])

    @property
    def untrusted(self) -> list[tuple[str, str, str]]:
        """Key, value, and what to trust, for all that is not."""
        return [
            (dotted(key), entry, str(self._place(module) or module))
            for key, entry, module in self._named
            if not self._is_named(module) and not ((place := self._place(module)) and self._is_within(place))
        ]

    def refuse(self, why: str) -> None:
        """See that all is trusted.

        Args:
            why: whose settings these are.

        Raises:
            Untrusted: something is not; the message says how to trust it.
        """
        if found := self.untrusted:
            raise _untrusted(why, found)

    def _is_named(self, module: str) -> bool:
        return any(f"{module}.".startswith(f"{one}.") for one in self._modules)

    def _is_within(self, folder: Path) -> bool:
        return any(folder.is_relative_to(one) for one in self._folders)

    def _place(self, module: str) -> Path | None:
        """The first folder of `run.python_path` that has the module."""
        top = module.partition(".")[0]
        has = (one for one in self._path if (one / top).is_dir() or any(one.glob(f"{top}.*")))
        return next(has, None)


def _untrusted(why: str, found: Sequence[tuple[str, str, str]]) -> Untrusted:
    """The error about keys, their values and what to trust."""
    names = list(dict.fromkeys(visible(what, 300) for _, _, what in found))
    told = ", ".join(f'{key} = "{visible(entry, 200)}"' for key, entry, _ in found)
    quoted = ", ".join(f'"{name}"' for name in names)
    words = " ".join(f"--trust {_as_word(name)}" for name in names)
    return Untrusted(
        [
            f"{why}, and names code that is not built in: {told}; nothing of it was run. "
            f"If you trust its author, add: {words} (in Python: trust=[{quoted}])"
        ]
    )


def foreign_code(settings: Settings) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Key, value and module of each entry that has code run which is neither built in nor gymnasium's own."""
    for path, module in settings.named_modules():
        match path:
            case ("task", "wrappers", int(index)):
                entry = settings.task.wrappers[index].entry
                if _is_plain(entry):
                    continue
            case ("task", "stages", int(stage), "wrappers", int(index)):
                entry = (settings.task.stages[stage].wrappers or ())[index].entry
                if _is_plain(entry):
                    continue
            case ("task", "env"):
                entry = settings.task.env
            case _:
                entry = settings.algorithm.name
        yield path, entry, module
    if settings.task.env in _IMPORTING_IDS:
        yield ("task", "env"), settings.task.env, _IMPORTING_IDS[settings.task.env]


def _is_plain(entry: str) -> bool:
    module, _, name = entry.partition(":")
    return module == _PLAIN_WRAPPERS and name != _WRITES_FILES


def code_of(settings: Settings) -> dict[str, Any]:
    """Return what of settings decides which code runs, as JSON: what a seal is of."""
    task = settings.task.model_dump(mode="json")
    return {
        "algorithm": settings.algorithm.name,
        "python_path": list(settings.run.python_path),
        **{key: redact(task[key]) for key in ("env", "kwargs", "wrappers")},
        **({"stages": redact(task["stages"])} if task["stages"] else {}),
    }


def seal_of(settings: Settings) -> str:
    """The seal of settings that this user runs; empty where they name nothing that takes one."""
    needs_one = settings.run.python_path or any(True for _ in foreign_code(settings))
    return sealed(code_of(settings)) if needs_one else ""


def _as_word(name: str) -> str:
    """The name as a shell takes it in one word."""
    return name if re.fullmatch(r"[\w./-]+", name, re.ASCII) else "'" + name.replace("'", "'\\''") + "'"
