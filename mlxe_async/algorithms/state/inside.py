"""Walks through all that an object holds, however deep, and tells each thing with the way to it, such as `net.gain`.

Entered are mappings, lists, tuples, sets, queues, partials, closures, defaults and attributes of functions, bound
methods, attributes and slots of objects; of torch modules also parameters, buffers and hooks. A thing is told once.
"""

from __future__ import annotations

import collections
import enum
import functools
import random
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mlxe_async.algorithms.state.flat_form import copy_into

MOST = 20_000
"""Things of one walk; what lies behind them is not told."""
LEAVES = (str, bytes, int, float, complex, bool, type(None), np.generic, np.dtype, enum.Enum)
"""Types of values that hold nothing and cannot change."""
STILL = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.GeneratorType, types.FrameType)
"""Types of values that are not entered."""
_PLACES = ("_parameters", "_buffers", "_modules")  # of a torch module, whose keys are attributes of it
_CALLED = (types.FunctionType, types.MethodType, functools.partial)


def walk(
    parts: Mapping[str, Any], skip: Callable[[Any], bool] = lambda _value: False, most: int = MOST
) -> Iterator[tuple[str, Any]]:
    """Everything that the parts hold, themselves included, as way and value.

    Args:
        parts: name -> value.
        skip: whether a value is neither told nor entered.
        most: number of things after which the walk ends.
    """
    waiting = collections.deque(parts.items())
    seen: set[int] = set()
    kept: list[Any] = []  # a thing made on the way must not give its number to another one
    while waiting and len(kept) < most:
        way, value = waiting.popleft()
        if skip(value):
            continue
        if not isinstance(value, LEAVES):
            if id(value) in seen:
                continue
            seen.add(id(value))
        kept.append(value)
        yield way, value
        waiting.extend((f"{way}.{key}", one) for key, one in _within(value))


def digest(value: Any) -> Any:
    """Return a digest of a value without its contents: equal for equal numbers, texts, arrays and functions."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), _sum_of(array_of(value)))
    if torch is not None and isinstance(value, torch.Generator):
        return ("generator", _sum_of(value.get_state().numpy()))
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, _sum_of(value) if value.dtype.kind in "biufcmM" else "")
    if isinstance(value, np.random.Generator):
        return ("generator", repr(value.bit_generator.state))
    if isinstance(value, np.random.RandomState):
        return ("generator", repr(value.get_state(legacy=False)))
    if isinstance(value, random.Random):
        return ("generator", value.getstate())
    if isinstance(value, types.FunctionType):
        return ("function", value.__module__, value.__qualname__, zlib.crc32(value.__code__.co_code))
    if isinstance(value, type | types.BuiltinFunctionType):
        return ("name", value.__module__, value.__qualname__)
    if isinstance(value, LEAVES):
        return (type(value).__name__, repr(value))
    size = len(value) if isinstance(value, collections.abc.Sized) and _is_plain(value) else 0
    return (type(value).__module__, type(value).__qualname__, size)


def digests(parts: Mapping[str, Any], skip: Callable[[Any], bool] = lambda _value: False) -> dict[str, Any]:
    """The digest of everything that the parts hold, by the way to it."""
    return {way: digest(value) for way, value in walk(parts, skip)}


def odd_ways(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The ways by which two walks found something else, for each part the shortest."""
    odd = [way for way in {**one, **other} if one.get(way, odd_ways) != other.get(way, odd_ways)]
    shortest: dict[str, str] = {}
    for way in sorted(odd, key=lambda way: (way.count("."), way)):
        shortest.setdefault(way.partition(".")[0], way)
    return sorted(shortest.values())


def _is_plain(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set | frozenset | collections.deque)


def _within(value: Any) -> Iterable[tuple[str, Any]]:
    """Return what a thing holds itself, by names."""
    torch = sys.modules.get("torch")
    if isinstance(value, (*LEAVES, *STILL, np.ndarray, np.random.Generator, np.random.RandomState, random.Random)):
        return ()
    if torch is not None and isinstance(value, torch.Tensor | torch.Generator | torch.dtype | torch.device):
        return ()
    if torch is not None and isinstance(value, torch.nn.Module):
        return _of_module(value)
    if isinstance(value, _CALLED):
        return _of_function(value)
    held: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        held += [(str(key), one) for key, one in value.items()]
        if isinstance(value, collections.defaultdict):
            held.append(("default_factory", value.default_factory))
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        held += [(str(index), one) for index, one in enumerate(value)]
    return [*held, *attributes(value).items()]


def attributes(value: Any) -> dict[str, Any]:
    """Attributes and filled slots of an object."""
    slots = [
        name
        for kind in type(value).__mro__
        for name in _names(vars(kind).get("__slots__", ()))
        if name not in ("__dict__", "__weakref__")
    ]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return found | dict(getattr(value, "__dict__", {}))


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _of_module(module: Any) -> Iterator[tuple[str, Any]]:
    for key, one in vars(module).items():
        if key in _PLACES:
            yield from one.items()
        elif "_hooks" in key:
            yield from ((f"{key.strip('_')}.{index}", hook) for index, hook in enumerate(one.values()))
        elif key != "training":
            yield key, one


def _of_function(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), *value.keywords.items(), *vars(value).items())
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), ("function", value.__func__))
    else:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != types.CellType():
                yield name, cell.cell_contents
        yield from (("defaults", value.__defaults__), ("keyword_defaults", value.__kwdefaults__), *vars(value).items())


def array_of(tensor: Any) -> Any:
    """A tensor's numbers, where they lie if that is in main memory; bits where numpy has no such type."""
    torch = sys.modules["torch"]
    if tensor.dtype is torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy(force=True)
    return tensor.numpy(force=True)


def copy_of(array: Any) -> Any:
    """A copy of an array, by rows."""
    copy = np.empty(array.shape, array.dtype)
    copy_into(copy, array)
    return copy


def _sum_of(array: Any) -> int:
    by_rows = array if array.flags.c_contiguous else copy_of(array)
    return zlib.crc32(by_rows.reshape(-1).view(np.uint8).data) if array.size else 0
