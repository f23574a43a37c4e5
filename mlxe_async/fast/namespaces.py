"""Compares a live module with a fresh one that was made of its file: name by name, member by member.

What is compared is what can run, or decide what runs: code, defaults, closures, the namespace that a function looks
names up in, constants, bases and members of classes, and what each name is bound to. A name too many is a difference.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import threading
import types
from collections.abc import Collection, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

MADE = {
    "__builtins__",
    "__cached__",
    "__doc__",
    "__file__",
    "__loader__",
    "__path__",
    "__spec__",
    "__warningregistry__",
}
"""Names of a module that its file does not write."""
UNTOLD = {
    *("__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate__", "__annotations_cache__"),
    *("__dataclass_fields__", "__dataclass_params__", "__firstlineno__", "__static_attributes__", "__signature__"),
    *("__parameters__", "__orig_bases__", "__slotnames__", "_abc_impl", "__private_attributes__", "__class_vars__"),
    *("model_config", "model_fields", "model_computed_fields"),
}
"""Names of a class that decide nothing while it runs; settings are read from their object, by twin and file alike."""
GENERATED = ("__pydantic_", "__builtins_dict__", "__compiled_fn_", "__resume_at_", "__import_")
"""How names begin that pydantic, and torch's compiler, put beside what a file writes."""
GRADIENTS = "_backward_cls"
"""The name under which torch puts a class of gradients into each `autograd.Function`."""
TOLD = (int, float, complex, str, bytes, type(None), range, np.ndarray, np.generic, np.dtype)
"""Objects that their `repr` tells whole."""
Space = Mapping[str, Any]
_CODE = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
_BASES, _CONTENT, _FIRST = (
    operator.attrgetter("__bases__"),
    operator.attrgetter("cell_contents"),
    operator.itemgetter(0),
)
_Cached = type(functools.cache(repr))


class Comparison:
    """A live module beside a fresh one.

    Args:
        module: the live one.
        fresh: the one that it should be equal to.
    """

    def __init__(self, module: types.ModuleType, fresh: types.ModuleType) -> None:
        self._live, self._fresh = vars(module), vars(fresh)
        self._met: dict[tuple[int, int], Any] = {}
        self._spaces: list[tuple[str, Space, int]] = []
        self._names: list[tuple[Space, str, Any]] = []
        self._functions: dict[types.FunctionType, tuple[Any, str]] = {}
        self._constants: list[tuple[Any, Any, str]] = []
        self._classes: dict[type, tuple[tuple[type, ...], type, str]] = {}
        self._cells: list[tuple[types.CellType, Any, str]] = []
        self._objects: list[tuple[Any, tuple[Any, ...], str]] = []
        self.difference = self._names_differ(self._live, self._fresh, f"{module.__name__}:", MADE)
        "The place of the first difference; empty if there is none."
        self._see()

    def changed(self) -> str:
        """The place of what is no longer as it was when the two were equal; "" where all is."""
        if self._is_as_seen():
            return ""
        if not (found := self._changed()):
            self._see()
        return found

    def _see(self) -> None:
        """Take down what all names are bound to, so that a look at it is quick."""
        views: list[Collection[Any]] = [space.values() for _, space, _ in self._spaces]
        views += [live.values() if isinstance(live, dict) else live for live, _, _ in self._constants]
        self._views = [(view, [*view]) for view in views]
        self._codes = [*map(_CODE, self._functions)]
        self._bases, self._metas = [kind.__bases__ for kind in self._classes], [*map(type, self._classes)]
        self._contents = [content for _, content, _ in self._cells]

    def _is_as_seen(self) -> bool:
        return (
            all(len(view) == len(seen) and all(map(operator.is_, view, seen)) for view, seen in self._views)
            and all(map(operator.eq, map(_CODE, self._functions), self._codes))
            and all(map(operator.is_, map(_BASES, self._classes), self._bases))
            and all(map(operator.is_, map(type, self._classes), self._metas))
            and all(map(operator.is_, map(_CONTENT, map(_FIRST, self._cells)), self._contents))
            and not any(self._is_another(one, before) for one, before, _ in self._objects)
        )

    @staticmethod
    def _is_another(one: Any, before: tuple[Any, ...]) -> bool:
        now = _attributes(one)
        return len(now) != len(before) or not all(map(operator.is_, now, before))

    def _changed(self) -> str:
        for space, name, one in self._names:
            if space.get(name) is not one:
                return f"{next(place for place, other, _ in self._spaces if other is space)}{name}"
        for place, space, size in self._spaces:
            if len(space) != size and (new := self._new(space)):
                return f"{place}{min(new)}"
        for function, before in self._functions.items():
            if _CODE(function) != before[0]:
                return before[1]
        for kind, (bases, meta, place) in self._classes.items():
            if kind.__bases__ is not bases or type(kind) is not meta:
                return place
        for cell, content, place in self._cells:
            if cell.cell_contents is not content:
                return place
        for one, before, place in self._objects:
            if self._is_another(one, before):
                return place
        self._met, constants, self._constants = {}, self._constants, []
        return next((place for live, fresh, place in constants if self._differs(live, fresh, place)), "")

    def _new(self, space: Space) -> set[str]:
        modules = {name for name, value in space.items() if _is_submodule(space, name, value)}
        known = {name for other, name, _ in self._names if other is space} | modules | MADE | UNTOLD
        return {name for name in space.keys() - known if not name.startswith(GENERATED)}

    # -- namespaces --

    def _names_differ(self, live: Space, fresh: Space, place: str, untold: set[str]) -> str:
        self._spaces.append((place, live, len(live)))
        for name in sorted(live.keys() | fresh.keys()):
            if name in untold or name.startswith(GENERATED) or _is_state(name, live.get(name), fresh.get(name)):
                continue
            if name not in fresh and _is_submodule(live, name, live[name]):
                continue
            if name not in live or name not in fresh:
                return f"{place}{name}"
            are_torchs = name == GRADIENTS and _are_torchs(live[name], fresh[name])
            if not are_torchs and (found := self._differs(live[name], fresh[name], f"{place}{name}")):
                return found
            self._names.append((live, name, live[name]))
        return ""

    def _differs(self, live: Any, fresh: Any, place: str) -> str:
        """The place where two objects differ, which is theirs or that of a member; "" if they are equal."""
        if live is fresh or (id(live), id(fresh)) in self._met:
            return ""
        self._met[id(live), id(fresh)] = fresh
        if isinstance(fresh, type):
            return self._classes_differ(live, fresh, place) if isinstance(live, type) else place
        if type(live) is not type(fresh) and self._differs(type(live), type(fresh), place):
            return place
        if isinstance(fresh, types.FunctionType):
            return self._functions_differ(live, fresh, place)
        if isinstance(fresh, TOLD) or type(fresh).__module__ in ("typing", "types"):
            return "" if repr(live) == repr(fresh) else place
        inside = _inside(live), _inside(fresh)
        if inside[0].keys() != inside[1].keys():
            return place
        if isinstance(fresh, dict | list | set):
            self._constants.append((live, fresh, place))
        elif isinstance(fresh, types.CellType):
            self._cells.append((live, live.cell_contents, place))
        elif attributes := _attributes(live):
            self._objects.append((live, attributes, place))
        if not inside[1]:  # such as an object of C, which may say what it is
            bare = type(fresh) is object or hasattr(fresh, "__dict__")
            is_equal = bare or (repr(live) == repr(fresh) and " at 0x" not in repr(fresh))
            return "" if is_equal else place
        return next((place for key, one in inside[1].items() if self._differs(inside[0][key], one, place)), "")

    def _classes_differ(self, live: type, fresh: type, place: str) -> str:
        if live.__module__ != self._live["__name__"] or live.__qualname__ != fresh.__qualname__:
            return place
        if type(live) is not type(fresh) or len(live.__bases__) != len(fresh.__bases__):
            return f"{place}.__bases__"
        self._classes[live] = live.__bases__, type(live), f"{place}.__bases__"
        for one, other in zip(live.__bases__, fresh.__bases__, strict=True):
            if found := self._differs(one, other, f"{place}.__bases__"):
                return found
        return self._names_differ(vars(live), vars(fresh), f"{place}.", UNTOLD)

    def _functions_differ(self, live: types.FunctionType, fresh: types.FunctionType, place: str) -> str:
        if _code(live.__code__) != _code(fresh.__code__):
            return place
        wanted = self._live if fresh.__globals__ is self._fresh else fresh.__globals__
        if live.__globals__ is not wanted and self._differs(live.__globals__, wanted, place):
            return place
        for name in ("__defaults__", "__kwdefaults__", "__closure__", "__dict__"):
            if name == "__dict__" and not (live.__dict__ or fresh.__dict__):
                continue
            if self._differs(getattr(live, name), getattr(fresh, name), place):
                return place
        self._functions[live] = (_CODE(live), place)
        return ""


def _is_state(name: str, live: Any, fresh: Any) -> bool:
    """A private variable that begins empty, such as a cache; what runs is never one."""
    return name[0] == "_" and type(fresh) in (bool, list, WeakKeyDictionary) and not fresh and type(live) is type(fresh)


def _are_torchs(live: Any, fresh: Any) -> bool:
    """Return whether torch made these for an `autograd.Function` each; they bear numbers that differ."""
    made = all(vars(getattr(one, "_forward_cls", object)).get(GRADIENTS) is one for one in (live, fresh))
    return made and live.__bases__ == fresh.__bases__ and vars(live).keys() == vars(fresh).keys()


def _is_submodule(space: Space, name: str, value: Any) -> bool:
    return "__path__" in space and value is sys.modules.get(f"{space['__name__']}.{name}")


def _attributes(one: Any) -> tuple[Any, ...]:
    """Return what can be exchanged in an object that is no container: its attributes."""
    if isinstance(one, tuple | frozenset | types.MappingProxyType | threading.local):  # which no two threads share
        return ()
    return (*_slots(one).values(), *getattr(one, "__dict__", {}).values())


def _inside(one: Any) -> dict[Any, Any]:
    """Return what an object consists of, by names or positions."""
    if isinstance(one, dict | types.MappingProxyType):
        return {repr(key): value for key, value in one.items()}
    if isinstance(one, list | tuple):
        return dict(enumerate(one))
    if isinstance(one, set | frozenset):
        return {repr(value): value for value in one}
    if isinstance(one, functools.cached_property):
        return {"function": one.func, "name": one.attrname}
    if isinstance(one, _Cached):  # whatever it says that it wraps
        return dict(enumerate(each for each in gc.get_referents(one) if callable(each)))
    if isinstance(one, types.CellType):
        return {"cell": one.cell_contents}
    if isinstance(one, property):
        return {name: getattr(one, name) for name in ("fget", "fset", "fdel")}
    if isinstance(one, classmethod | staticmethod):
        return {"function": one.__func__}
    if isinstance(one, types.BuiltinMethodType) and not isinstance(one.__self__, types.ModuleType):
        return {"name": one.__qualname__, "of": type(one.__self__)}
    if isinstance(one, types.MemberDescriptorType | types.GetSetDescriptorType):
        return {"name": one.__name__}
    return _slots(one) | getattr(one, "__dict__", {})


def _slots(one: Any) -> dict[str, Any]:
    names = [name for kind in type(one).__mro__ for name in vars(kind).get("__slots__", ())]
    return {name: getattr(one, name) for name in names if hasattr(one, name)}


def _code(code: types.CodeType) -> tuple[Any, ...]:
    """Return what a function does, without its lines."""
    numbers = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, code.co_exceptiontable, *numbers, *names, tuple(map(_constant, code.co_consts))


def _constant(one: Any) -> Any:
    if isinstance(one, types.CodeType):
        return _code(one)
    if isinstance(one, tuple):
        return tuple(map(_constant, one))
    return type(one), one if isinstance(one, frozenset) else repr(one)
