"""State in an author's modules and classes beside their code: that of a process, which no other process gets.

A place is a global name of a module, an attribute of a class, or what a function remembers in closure, defaults or
attributes. Modules are the author's own: neither a library's nor this package's.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from mlxe_async.algorithms.state import inside

MISSING = type("MISSING", (), {})
"""Nothing was there."""
MOST_BYTES = 1 << 24
"""Largest size of the arrays of one place; what is larger, such as a set of data, is not looked at."""
_PACKAGE = __name__.partition(".")[0]
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OURS = str(Path(__file__).parents[1])
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, staticmethod, classmethod, property)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType)


@dataclass
class _Place:
    """A place whose value may change while a run goes on.

    Args:
        name: module and name, such as `my_file.SCALE`.
        get: what is there now.
        put: puts something else there.
        first: a copy of what was there at first.
        known: its digests; None: it is too large to be looked at.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    first: Any = MISSING
    known: dict[str, Any] | None = None

    def remember(self) -> None:
        """Know what is there now, to tell whether it changes."""
        value = self.get()
        if not _is_small(value):
            return
        self.known = inside.digests({"": value}, _is_code)
        try:
            self.first = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - a lock, or whatever an author's own copying raises: it is what it is
            self.first = value

    def has_changed(self) -> bool:
        """Return whether something else is there now."""
        return self.known is not None and inside.digests({"": self.get()}, _is_code) != self.known


class Namespaces:
    """The places of an author's modules as they are now, to tell later what has changed.

    Args:
        kind: the author's class; of one that comes with this package there are none.
    """

    def __init__(self, kind: type) -> None:
        self._modules = own_modules(kind)
        self._places = {place.name: place for module in self._modules for place in _places_of(module)}
        for place in self._places.values():
            place.remember()

    def changed(self) -> list[str]:
        """Names of the places that are no longer what they were."""
        return sorted(place.name for place in self._changed())

    def _changed(self) -> list[_Place]:
        now = [place for module in self._modules for place in _places_of(module)]
        made = [place for place in now if place.name not in self._places]
        return [*made, *(place for place in self._places.values() if place.has_changed())]

    @contextlib.contextmanager
    def as_at_first(self) -> Iterator[None]:
        """Have the places be inside what they were at first: what another process finds there."""
        now = [(place, place.get()) for place in self._changed()]
        for place, _ in now:
            place.put(copy.deepcopy(place.first))
        try:
            yield
        finally:
            for place, value in now:
                place.put(value)


def is_own(kind: type) -> bool:
    """Return whether a class is an author's, or derived from one."""
    return any(not _is_ours(one.__module__) for one in kind.__mro__ if one is not object)


def own_modules(kind: type) -> list[types.ModuleType]:
    """The author's modules that a class is made of: its own, and those that they import."""
    names = [one.__module__ for one in kind.__mro__ if one is not object and not _is_ours(one.__module__)]
    tops = {name.partition(".")[0] for name in names}
    waiting = [sys.modules[name] for name in dict.fromkeys(names) if name in sys.modules]
    found: dict[str, types.ModuleType] = {}
    while waiting:
        module = waiting.pop()
        if module.__name__ in found:
            continue
        found[module.__name__] = module
        held = (_module_of(value) for value in list(vars(module).values()))
        waiting += [one for one in held if one is not None and _is_authors(one, tops)]
    return [found[name] for name in sorted(found)]


def _module_of(value: Any) -> types.ModuleType | None:
    if isinstance(value, types.ModuleType):
        return value
    return sys.modules.get(getattr(value, "__module__", "") or "") if isinstance(value, _CODE) else None


def _is_ours(name: str) -> bool:
    return name == _PACKAGE or name.startswith(f"{_PACKAGE}.") or name in ("builtins", "abc", "typing")


def _is_authors(module: types.ModuleType, tops: set[str]) -> bool:
    name, file = module.__name__, getattr(module, "__file__", None)
    if name.partition(".")[0] in tops:
        return True
    return bool(file) and not _is_ours(name) and not str(file).startswith((_OURS, *_LIBRARIES))


def _is_code(value: Any) -> bool:
    """Return whether a value is told by its name alone."""
    return isinstance(value, types.ModuleType | type)


def _is_small(value: Any) -> bool:
    sizes = (int(getattr(one, "nbytes", 0)) for _, one in inside.walk({"": value}, _is_code) if _has_size(one))
    return sum(sizes) <= MOST_BYTES


def _has_size(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _places_of(module: types.ModuleType) -> Iterator[_Place]:
    space, name = vars(module), module.__name__
    for key, value in list(space.items()):
        if key.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if isinstance(value, type):
            if value.__module__ == name and not issubclass(value, BaseModel | enum.Enum):
                yield from _of_class(f"{name}.{key}", value)
        elif isinstance(value, types.FunctionType):
            if value.__module__ == name:
                yield from _of_function(f"{name}.{key}", value)
        elif not isinstance(value, (*_CODE, *_DESCRIPTORS)):
            yield _Place(f"{name}.{key}", _getter(space, key), _setter(space, key))


def _of_class(name: str, kind: type) -> Iterator[_Place]:
    for key, value in list(vars(kind).items()):
        if key.startswith("__") or key == "_abc_impl":
            continue
        for function in _functions_of(value):
            yield from _of_function(f"{name}.{key}", function)
        if not isinstance(value, (*_CODE, *_DESCRIPTORS)):
            yield _Place(f"{name}.{key}", _class_getter(kind, key), _class_setter(kind, key))


def _functions_of(value: Any) -> list[types.FunctionType]:
    parts = (value, getattr(value, "__func__", None), *(getattr(value, part, None) for part in ("fget", "fset")))
    return [one for one in parts if isinstance(one, types.FunctionType)]


def _of_function(name: str, function: types.FunctionType) -> Iterator[_Place]:
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType() and variable != "__class__":
            yield _Place(f"{name}.{variable}", _attribute_getter(cell, "cell_contents"), _putter(cell, "cell_contents"))
    for part in ("__defaults__", "__kwdefaults__", "__dict__"):
        if getattr(function, part):
            yield _Place(f"{name}.{part}", _attribute_getter(function, part), _putter(function, part))


def _getter(space: dict[str, Any], key: str) -> Callable[[], Any]:
    return lambda: space.get(key, MISSING)


def _setter(space: dict[str, Any], key: str) -> Callable[[Any], Any]:
    return lambda value: space.pop(key, None) if value is MISSING else space.__setitem__(key, value)


def _class_getter(kind: type, key: str) -> Callable[[], Any]:
    return lambda: vars(kind).get(key, MISSING)


def _class_setter(kind: type, key: str) -> Callable[[Any], Any]:
    return lambda value: type.__delattr__(kind, key) if value is MISSING else type.__setattr__(kind, key, value)


def _attribute_getter(holder: Any, name: str) -> Callable[[], Any]:
    return lambda: getattr(holder, name)


def _putter(holder: Any, name: str) -> Callable[[Any], Any]:
    return lambda value: setattr(holder, name, None if value is MISSING else value)
