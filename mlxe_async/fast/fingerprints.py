"""What a fast twin was derived from: the text of each function that an update runs through.

A twin computes what the functions of a built-in algorithm say, without calling them. So it may stand for them only
while they say the same. `fingerprint` walks from an algorithm's class through all functions of the project that it can
reach, and takes down a digest of each one's text, and the value of each constant. `kept` is what was taken down when
twin and text were last proven equal. The walk looks at the functions as they are in this process: one that was patched
or overridden has another text, and so has a file that was edited in place. A file that changed after the program had
begun counts as changed, too: its text is no longer that of the code that runs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import linecache
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlxe_async import IMPORTED_NS

PROJECT = "mlxe_async"
KEPT = Path(__file__).with_name("fingerprints.json")
ROOTS = ("update", "set_weights", "weights", "state", "restore")
ACTING = ("act", "behaviour_log_prob", "policy")
ALWAYS = ("__init__", "__post_init__", "__call__", "forward", "__getattr__", "__getattribute__", "__setattr__")
PLAIN = (int, float, str, bytes, bool, tuple, type(None))
Fingerprint = dict[str, str]


def kept(name: str) -> Fingerprint:
    """The fingerprint that the twin of the built-in algorithm `name` was derived for."""
    found: Fingerprint = json.loads(KEPT.read_text()).get(name, {})
    return found


def difference(algorithm: type, name: str) -> str:
    """What differs between an algorithm's class as it is now and the one its twin was derived for; "" if nothing."""
    return _difference(kept(name), fingerprint(algorithm))


def difference_of_acting(algorithm: type, name: str) -> str:
    """What differs in the way it acts from the one whose log-probabilities the twin knows; "" if nothing."""
    return _difference(kept(f"{name} acts"), acting(algorithm))


def _difference(expected: Fingerprint, found: Fingerprint) -> str:
    changed = sorted(
        {key for key in expected if found.get(key, expected[key]) != expected[key]}
        | (found.keys() - expected.keys())
        | (expected.keys() - found.keys())
    )
    if not changed:
        return ""
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{changed[0]}{more}"


def fingerprint(algorithm: type) -> Fingerprint:
    """A digest of the text of each function that a class's learning can reach, and the constants that they read."""
    # Updates call nothing of the way of acting; one that is changed to do so has another text itself.
    return _Walk(algorithm, ROOTS, without=ACTING).found


def acting(algorithm: type) -> Fingerprint:
    """The same of what decides how likely an action is, the evaluation of networks and what learning reaches apart."""
    learned, found = fingerprint(algorithm), _Walk(algorithm, (*ROOTS, *ACTING)).found
    places = (f"{PROJECT}.algorithms", f"{PROJECT}.maths")
    return {place: value for place, value in found.items() if place not in learned and place.startswith(places)}


class _Walk:
    """From function to function, by the names that each one's code mentions, until nothing new is found.

    A method that is called on some object is looked for in each class of the project that was met on the way.
    """

    def __init__(self, algorithm: type, roots: tuple[str, ...], without: tuple[str, ...] = ()) -> None:
        self._without = {*without}
        self.found: Fingerprint = {}
        self._mentioned: set[str] = {*roots, *ALWAYS}
        self._classes: dict[type, dict[str, tuple[type, Any]]] = {}
        self._followed: set[types.FunctionType] = set()
        self._meet(algorithm)
        self._meet(getattr(algorithm, "Settings", object))
        known = -1
        while known < len(self._mentioned):
            known = len(self._mentioned)
            for klass in list(self._classes):
                self._members(klass)

    def _meet(self, klass: type) -> None:
        if klass in self._classes or not _ours(klass.__module__) or issubclass(klass, (BaseException, tuple)):
            return
        members: dict[str, tuple[type, Any]] = {}
        for owner in reversed(klass.__mro__):
            if owner.__module__.partition(".")[0] not in _LIBRARIES:
                members |= {name: (owner, value) for name, value in vars(owner).items()}
        self._classes[klass] = members

    def _members(self, klass: type) -> None:
        """What a class, its bases included, has under the names that were mentioned."""
        members = self._classes[klass]
        for name in sorted(members.keys() & self._mentioned - self._without):
            owner, value = members.pop(name)
            place = f"{owner.__module__}:{owner.__qualname__}.{name}"
            for function in _functions(value):
                if function.__code__.co_filename != "<string>" or name not in ALWAYS:  # a dataclass makes these
                    self._follow(place, function)
            if isinstance(value, PLAIN):
                self.found[place] = repr(value)

    def _follow(self, place: str, function: types.FunctionType) -> None:
        if function in self._followed:
            return
        self._followed.add(function)
        self.found[place] = digest(function)
        names = set(_names(function.__code__))
        self._mentioned |= names
        for name in sorted(name for name in names if _ours(name)):  # imported by the function itself
            self._value(name, importlib.import_module(name), names)
        for name in sorted(names & function.__globals__.keys()):
            self._value(f"{function.__module__}:{name}", function.__globals__[name], names)

    def _value(self, place: str, value: Any, names: set[str]) -> None:
        """What a function finds under a global name."""
        if isinstance(value, types.ModuleType):
            for name in sorted(names & vars(value).keys()) if _ours(value.__name__) else ():
                self._value(f"{value.__name__}:{name}", vars(value)[name], set())
        elif isinstance(value, type):
            self._meet(value)
        elif found := _functions(value):
            for function in found:
                if function.__module__.split(".")[0] not in _LIBRARIES:
                    self._follow(place, function)
        elif isinstance(value, PLAIN) and place.partition(":")[2].isupper():  # what is not a constant is a state
            self.found[place] = repr(value)


_LIBRARIES = {"builtins", "abc", "typing", "collections", "pydantic", "torch", "numpy", "functools"}


def _ours(module: str) -> bool:
    return module == PROJECT or module.startswith(f"{PROJECT}.")


def _functions(value: Any) -> list[types.FunctionType]:
    """The functions behind a member: itself, or those of a property, a class method or a cached function."""
    if isinstance(value, property):
        return [one for one in (value.fget, value.fset) if isinstance(one, types.FunctionType)]
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    value = inspect.unwrap(value) if hasattr(value, "__wrapped__") else value
    return [value] if isinstance(value, types.FunctionType) else []


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def digest(function: types.FunctionType) -> str:
    """Of a function's text, its defaults and where it stands; another one where its file has changed meanwhile."""
    code = function.__code__
    if (changed_ns := _changed_ns(code.co_filename)) is None or changed_ns > IMPORTED_NS:
        return "it has no file" if changed_ns is None else "its file has changed"
    place = f"{function.__module__} {function.__qualname__}"
    defaults = repr((function.__defaults__, function.__kwdefaults__))
    return hashlib.sha256(f"{place}\n{defaults}\n{text(code)}".encode()).hexdigest()[:16]


@functools.lru_cache(64)
def _changed_ns(path: str) -> int | None:
    """When a file was last written to, None if there is none."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None


def text(code: types.CodeType) -> str:
    """The lines that a function stands on."""
    lines = linecache.getlines(code.co_filename)
    return "".join(lines[code.co_firstlineno - 1 : _last_line(code)])


def _last_line(code: types.CodeType) -> int:
    inner = [_last_line(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return max([code.co_firstlineno, *inner, *(end for _, end, _, _ in code.co_positions() if end)])
