"""All that a learner's object holds, as arrays by name, and back: what a run that goes on begins with.

Known are torch modules, parameters, tensors, optimisers and generators, numpy arrays and generators, numbers, truth
values and None, lists, tuples, dictionaries and objects of these, and whatever has `state_dict` and `load_state_dict`.
Each array's name follows from the attribute's. Names, dtypes and shapes stay the same from the first snapshot to the
last: an optimiser that has not stepped yet is told with zeros, and a mark that they do not count.
"""

from __future__ import annotations

import copy
import enum
import struct
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from pydantic import BaseModel

from mlxe_async.algorithms.state.held import tensors_of
from mlxe_async.maths import generators
from mlxe_async.rows import Array

LEFT_OUT = "left.out"
"""Name of the flags that tell which arrays of a state do not count, in their order."""
NUMBER_BYTES = 9  # a number's kind, and eight bytes of it
_KINDS: tuple[tuple[type, str], ...] = (
    *((bool, "<q"), (int, "<q"), (float, "<d"), (type(None), "<q"), (np.float64, "<d"), (np.float32, "<d")),
    *((np.float16, "<d"), (np.int64, "<q"), (np.int32, "<q"), (np.int16, "<q"), (np.int8, "<q"), (np.bool_, "<?")),
    *((np.uint64, "<Q"), (np.uint32, "<Q"), (np.uint16, "<Q"), (np.uint8, "<Q")),
)
STILL = (
    str,
    bytes,
    type,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    enum.Enum,
    BaseModel,
)
Leaf = Callable[[str, Callable[[], Array], Callable[[Array], Any]], Any]


def taken(parts: Mapping[str, Any]) -> dict[str, Array]:
    """Everything that the parts hold, copied: name -> array."""
    found: dict[str, Array] = {}

    def leaf(name: str, take: Callable[[], Array], put: Callable[[Array], Any]) -> Any:
        del put
        found[name] = take()
        return _UNCHANGED

    _Walk(leaf).all(parts)
    return found


def put_back(
    parts: Mapping[str, Any], state: Mapping[str, Array], skip: Callable[[str], bool] = lambda _name: False
) -> dict[str, Any]:
    """Have the parts hold what a snapshot of their like held. Returns those that had to be made anew, such as numbers.

    Args:
        parts: name -> value.
        state: from `taken`.
        skip: whether an array of this name stays what it is.

    Raises:
        KeyError: the snapshot lacks something.
    """

    def leaf(name: str, take: Callable[[], Array], put: Callable[[Array], Any]) -> Any:
        del take
        return _UNCHANGED if skip(name) else put(state[name])

    made = _Walk(leaf, puts=True).all(parts)
    return {name: value for name, value in made.items() if value is not parts[name]}


def unknown(parts: Mapping[str, Any]) -> list[str]:
    """Return what of the parts is in no snapshot, such as `history (deque)`."""
    walk = _Walk(lambda _name, _take, _put: _UNCHANGED)
    walk.all(parts)
    return walk.unknown


def covered(parts: Mapping[str, Any]) -> tuple[set[str], set[int]]:
    """Return what of the parts is in a snapshot: the names of its arrays, and which arrays and tensors these are."""
    names: set[str] = set()

    def leaf(name: str, take: Callable[[], Array], put: Callable[[Array], Any]) -> Any:
        del take, put
        names.add(name)
        return _UNCHANGED

    walk = _Walk(leaf)
    walk.all(parts)
    return names, walk.seen


class SameArrays:
    """Snapshots of the same names, dtypes and shapes, those of the first one, whatever becomes of the parts.

    What has another shape by then, or was not there at first, is left out, and all that lies beside it in the same
    container; the object that takes the snapshot up keeps for it what it was made with.
    """

    def __init__(self) -> None:
        self._layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] | None = None
        self.left_out: set[str] = set()
        "Names that were left out so far."

    def taken(self, parts: Mapping[str, Any]) -> dict[str, Array]:
        """Everything that the parts hold, as at first."""
        found = taken(parts)
        now = {name: (array.shape, array.dtype) for name, array in found.items()}
        if self._layout is None:
            self._layout = now
        if now == self._layout:  # nearly always
            return {name: found[name] for name in self._layout} | {LEFT_OUT: np.zeros(len(now), bool)}
        odd = {name for name in {*self._layout, *now} if self._layout.get(name) != now.get(name)}
        self.left_out |= odd
        beside = {_place(name) for name in odd}
        left = {name for name in self._layout if name in odd or _place(name) in beside - {""}}
        kept = {name: np.zeros(*how) if name in left else found[name] for name, how in self._layout.items()}
        return kept | {LEFT_OUT: np.array([name in left for name in self._layout], bool)}

    def put_back(self, parts: Mapping[str, Any], state: Mapping[str, Array]) -> dict[str, Any]:
        """As `put_back`, but for what was left out, or is not in any snapshot."""
        if self._layout is None:
            self.taken(parts)
        names = list(self._layout or ())
        left = {name for name, is_left in zip(names, state[LEFT_OUT].tolist(), strict=True) if is_left}
        return put_back(parts, state, lambda name: name in left or name not in names)


def _place(name: str) -> str:
    """The container that an array's name is in; "" for an attribute itself."""
    return name.rpartition(".")[0]


class _Unchanged:
    """The value stays what it is."""


_UNCHANGED = _Unchanged()


class _Walk:
    """Goes through values, and calls `leaf` with the name of each array, how it is taken and how it is put back."""

    def __init__(self, leaf: Leaf, *, puts: bool = False) -> None:
        self._leaf, self._torch, self._puts = leaf, sys.modules.get("torch"), puts
        self.seen: set[int] = set()
        "Arrays and tensors."
        self._entered: set[int] = set()
        self.unknown: list[str] = []

    def all(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._value(name, value) for name, value in parts.items()}

    def _value(self, name: str, value: Any) -> Any:
        """The value, or what takes its place."""
        for walk in (self._of_torch, self._of_numpy, self._of_python):
            found = walk(name, value)
            if found is not NotImplemented:
                return found
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            known = value.state_dict()
            self._value(name, known)
            if self._puts:
                value.load_state_dict(known)
        elif isinstance(value, STILL) or _is_constant(value):
            pass
        elif hasattr(value, "__dict__") and not isinstance(value, Iterable):
            self._object(name, value)
        else:
            self.unknown.append(f"{name} ({type(value).__name__})")
        return value

    def _object(self, name: str, value: Any) -> None:
        if id(value) in self._entered:
            return
        self._entered.add(id(value))
        for key, old in list(vars(value).items()):
            new = self._value(f"{name}.{key}", old)
            if new is not old:
                setattr(value, key, new)

    def _changed(self, old: Any, new: Any) -> Any:
        return old if isinstance(new, _Unchanged) else new

    # -- torch --

    def _of_torch(self, name: str, value: Any) -> Any:
        torch = self._torch
        if torch is None:
            return NotImplemented
        if isinstance(value, torch.nn.Module):
            for key, tensor in tensors_of(value):
                self._tensor(f"{name}.{key}", tensor)
        elif isinstance(value, torch.Tensor):
            self._tensor(name, value)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimiser(name, value)
        elif isinstance(value, torch.Generator):
            self._leaf(name, lambda: value.get_state().numpy().copy(), lambda a: value.set_state(torch.from_numpy(a)))
        else:
            return NotImplemented
        return value

    def _tensor(self, name: str, tensor: Any) -> None:
        if id(tensor) not in self.seen:
            self.seen.add(id(tensor))
            self._leaf(name, lambda: _array_of(tensor), lambda array: _fill(tensor, array))

    def _optimiser(self, name: str, optimiser: Any) -> None:
        torch: Any = self._torch
        if isinstance(optimiser, torch.optim.LBFGS):  # its history grows
            self.unknown.append(f"{name} (history of LBFGS)")
        number = 0
        layout = _layout_of(optimiser)
        for index, group in enumerate(optimiser.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            group.update(self._value(f"{name}.group{index}", options))
            for parameter in group["params"]:
                self._moments(f"{name}.{number}", optimiser.state, parameter, layout[number])
                number += 1

    def _moments(self, name: str, states: Any, parameter: Any, like: Mapping[str, Any]) -> None:
        """Take in what an optimiser remembers of one parameter; before its first step that is nothing."""
        torch: Any = self._torch
        known = dict(states.get(parameter, {}))
        there = self._value(f"{name}.there", bool(known))
        made = dict(known)
        for key, example in like.items():
            if not isinstance(example, torch.Tensor):
                made[key] = self._value(f"{name}.{key}", known.get(key, 0))
                continue
            made[key] = known[key] if key in known else torch.zeros_like(example)
            self._leaf(f"{name}.{key}", partial(_array_of, made[key]), partial(_fill, made[key]))
        if there:
            states[parameter] = made
        else:
            states.pop(parameter, None)

    # -- numpy --

    def _of_numpy(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            if id(value) in self.seen:
                return value
            self.seen.add(id(value))
            return self._changed(value, self._leaf(name, value.copy, lambda array: _filled(value, array)))
        if isinstance(value, np.random.Generator):
            self._leaf(name, lambda: generators.generator_words(value), lambda a: generators.set_generator(value, a))
            return value
        if any(type(value) is kind for kind, _ in _KINDS):
            return self._changed(value, self._leaf(name, lambda: _number_bytes(name, value), _number_of))
        return NotImplemented

    # -- Python --

    def _of_python(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return self._changed(value, self._leaf(name, lambda: _number_bytes(name, value), _number_of))
        if isinstance(value, dict):
            for key, one in list(value.items()):
                value[key] = self._value(f"{name}.{key}", one)
            return value
        if isinstance(value, list):
            value[:] = [self._value(f"{name}.{index}", one) for index, one in enumerate(value)]
            return value
        if isinstance(value, tuple):
            parts = [self._value(f"{name}.{index}", one) for index, one in enumerate(value)]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return NotImplemented


def _is_constant(value: Any) -> bool:
    """Return whether nothing can change in it: frozen dataclasses, torch's dtypes and devices, numpy's dtypes."""
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    torch = sys.modules.get("torch")
    return bool(
        frozen or isinstance(value, np.dtype) or (torch is not None and isinstance(value, torch.dtype | torch.device))
    )


def _number_bytes(name: str, value: bool | float | None) -> Array:
    """A number of any kind in as many bytes, so that one that was None, or whole, may become another."""
    own = [number for number, (type_, _) in enumerate(_KINDS) if type(value) is type_]
    kind = (own or [number for number, (type_, _) in enumerate(_KINDS) if isinstance(value, type_)])[0]
    form = _KINDS[kind][1]
    try:
        packed = struct.pack(form, 0 if value is None else value).ljust(NUMBER_BYTES - 1, b"\0")
    except struct.error as error:
        raise OverflowError(f"{name}: expected a whole number of at most 64 bits to keep, got {value}") from error
    return np.frombuffer(bytes([kind]) + packed, np.uint8).copy()


def _number_of(array: Array) -> bool | float | None:
    packed = array.astype(np.uint8).tobytes()
    type_, form = _KINDS[packed[0]]
    number = struct.unpack(form, packed[1 : 1 + struct.calcsize(form)])[0]
    return None if type_ is type(None) else type_(number)


def _filled(into: Array, array: Array) -> Array:
    into[...] = array
    return into


def _array_of(tensor: Any) -> Array:
    """A tensor's numbers, copied; bits where numpy has no such type."""
    torch: Any = sys.modules["torch"]
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.detach().view(torch.int16)
    array: Array = tensor.numpy(force=True).copy()
    return array


def _fill(tensor: Any, array: Array) -> Any:
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        into = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        into.copy_(torch.as_tensor(array))
    return tensor


_LAYOUTS: weakref.WeakKeyDictionary[Any, list[Mapping[str, Any]]] = weakref.WeakKeyDictionary()


def _layout_of(optimiser: Any) -> list[Mapping[str, Any]]:
    """Return for each parameter an example of the optimiser's state, found by a step of a copy."""
    known = _LAYOUTS.get(optimiser)
    count = sum(len(group["params"]) for group in optimiser.param_groups)
    if known is None or len(known) != count:
        known = _LAYOUTS[optimiser] = list(_examples(optimiser))
    return known


def _examples(optimiser: Any) -> Iterator[Mapping[str, Any]]:
    torch: Any = sys.modules["torch"]
    if isinstance(optimiser, torch.optim.LBFGS):  # its history grows; it begins anew
        yield from ({} for group in optimiser.param_groups for _ in group["params"])
        return
    trial = copy.deepcopy(optimiser)
    parameters = [one for group in trial.param_groups for one in group["params"]]
    for one in parameters:
        one.grad = torch.zeros_like(one)
    trial.step()
    for one in parameters:
        yield {
            key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else value
            for key, value in trial.state.get(one, {}).items()
            if isinstance(value, torch.Tensor | int | float)
        }
