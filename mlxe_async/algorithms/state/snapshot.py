"""All that a learner's object holds, as arrays by name, and back: what a run that goes on begins with.

Known are torch modules, parameters, tensors, optimisers and generators, numpy arrays and generators, numbers, truth
values and None, lists, tuples, dictionaries and objects of these, and whatever has `state_dict` and `load_state_dict`.
Each array's name follows from the attribute's. Names, dtypes and shapes stay the same from the first snapshot to the
last: an optimiser that has not stepped yet is told with zeros, and a mark that they do not count.
"""

from __future__ import annotations

import copy
import enum
import functools
import struct
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from pydantic import BaseModel

from mlxe_async.algorithms.state.held import tensors_of
from mlxe_async.algorithms.state.inside import array_of, copy_of
from mlxe_async.maths import generators
from mlxe_async.rows import Array

LEFT_OUT = "left.out"
"""Name of the flags that tell which arrays of a state do not count, in their order."""
NUMBERS = (
    *(bool, int, float, type(None), np.float64, np.float32, np.float16),
    *(np.int64, np.int32, np.int16, np.int8, np.bool_, np.uint64, np.uint32, np.uint16, np.uint8),
)
"""Kinds of numbers, whose order is part of each snapshot."""
_FORMS = [{"f": "<Bd", "u": "<BQ"}.get(np.dtype(kind).kind, "<Bq") for kind in NUMBERS]
"""A number's kind and eight bytes of it, packed."""
STILL = (
    *(str, bytes, type, enum.Enum, BaseModel, np.dtype),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
)
_copy = partial(np.copyto, casting="unsafe")
Put = Callable[[Any], object]
Leaf = Callable[[str, Callable[[], Array], Put], object]
"""Function that is told an array of a snapshot: its name, how it is taken, how another one is put in its place."""


class SameArrays:
    """Snapshots of the same names, dtypes and shapes, those of the first one, whatever becomes of the parts.

    What has another shape by then, or was not there at first, is left out, and all that lies beside it in the same
    container; the object that takes the snapshot up keeps for it what it was made with.
    """

    def __init__(self) -> None:
        self._layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] | None = None
        self.left_out: set[str] = set()
        "Names that were left out so far."
        self.unknown: list[str] = []
        "Parts that the last snapshot could not hold, such as `history (deque)`."

    def taken(self, parts: Mapping[str, Any], *, copied: bool = True) -> dict[str, Array]:
        """Everything that the parts hold, as at first: name -> array, copied or where it lies."""
        found: dict[str, Array] = {}
        walk = Walk(lambda name, take, _put: found.__setitem__(name, copy_of(take()) if copied else take()))
        walk.through(parts)
        now = {name: (array.shape, array.dtype) for name, array in found.items()}
        self.unknown = walk.unknown
        if self._layout is None:
            self._layout = now
        if now == self._layout:  # nearly always
            return {name: found[name] for name in self._layout} | {LEFT_OUT: np.zeros(len(now), bool)}
        odd = {name for name in {*self._layout, *now} if self._layout.get(name) != now.get(name)}
        self.left_out |= odd
        beside = {name.rpartition(".")[0] for name in odd} - {""}  # containers
        left = {name for name in self._layout if name in odd or name.rpartition(".")[0] in beside}
        kept = {name: np.zeros(*how) if name in left else found[name] for name, how in self._layout.items()}
        return kept | {LEFT_OUT: np.array([name in left for name in kept], bool)}

    def put_back(self, parts: Mapping[str, Any], state: Mapping[str, Array]) -> dict[str, Any]:
        """Have the parts hold what they held, but for what was left out, or is not in any snapshot.

        Returns those that had to be made anew, such as numbers.

        Raises:
            KeyError: the snapshot lacks something.
        """
        if self._layout is None:
            self.taken(parts)
        left = zip(self._layout or (), state[LEFT_OUT].tolist(), strict=True)
        counts = {name for name, is_left in left if not is_left}
        made: dict[str, Any] = {}
        Walk(lambda name, _take, put: put(state[name]) if name in counts else None, made.__setitem__).through(parts)
        return made


class Walk:
    """Goes through values, and tells each array in them.

    Args:
        leaf: is told each of them.
        put: puts what had to be made anew in the place of a part, by its name; None: nothing is put back.
    """

    def __init__(self, leaf: Leaf, put: Callable[[str, Any], object] | None = None) -> None:
        self._leaf, self._put, self._torch = leaf, put, sys.modules.get("torch")
        self.seen: set[int] = set()
        "Arrays and tensors that were told."
        self.unknown: list[str] = []
        "Parts that are in no snapshot, such as `history (deque)`."
        self._entered: set[int] = set()
        self._kept: list[Any] = []  # a thing made on the way must not give its number to another one

    def through(self, parts: Mapping[str, Any]) -> None:
        """Tell each array of the parts."""
        self._each("", parts.items(), self._put or _nowhere)

    def _each(self, before: str, parts: Iterable[tuple[Any, Any]], put: Callable[[Any, Any], object]) -> None:
        for key, one in [*parts]:
            self._value(f"{before}{key}", one, partial(put, key))

    def _value(self, name: str, value: Any, put: Put) -> None:
        """Tell each array of a value; `put` has another one take its place."""
        torch: Any = self._torch
        type_: type = type(value)
        kind = _told_as(torch, type_)
        if kind == "module":
            for key, tensor in tensors_of(value):
                self._array(f"{name}.{key}", tensor, array_of, _fill)
        elif kind == "tensor":
            self._array(name, value, array_of, _fill)
        elif kind == "number":
            self._leaf(name, partial(_number_bytes, name, value), lambda array: put(_number_of(array)))
        elif kind == "optimiser":
            self._optimiser(name, value)
        elif kind == "torch's generator":
            self._leaf(name, lambda: value.get_state().numpy(), lambda a: value.set_state(torch.from_numpy(a)))
        elif kind == "array" and value.dtype.kind in "biuf":
            self._array(name, value, np.asarray, _copy)
        elif kind == "generator":
            words, fill = partial(generators.generator_words, value), partial(generators.set_generator, value)
            self._leaf(name, words, fill)
        elif isinstance(value, dict):
            self._each(f"{name}.", value.items(), value.__setitem__)
        elif isinstance(value, list):
            self._each(f"{name}.", enumerate(value), value.__setitem__)
        elif isinstance(value, tuple):
            parts = [*value]
            self._each(f"{name}.", enumerate(value), parts.__setitem__)
            if any(new is not old for new, old in zip(parts, value, strict=True)):
                put(type(value)(*parts) if hasattr(value, "_fields") else tuple(parts))
        elif callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            self._kept.append(known := value.state_dict())
            self._value(name, known, _nowhere)
            if self._put:
                value.load_state_dict(known)
        elif isinstance(value, STILL) or _is_constant(value):
            return
        elif not hasattr(value, "__dict__") or isinstance(value, Iterable):
            self.unknown.append(f"{name} ({type(value).__name__})")
        elif id(value) not in self._entered:
            self._entered.add(id(value))
            self._each(f"{name}.", vars(value).items(), partial(setattr, value))

    def _array(self, name: str, value: Any, take: Callable[[Any], Array], fill: Callable[[Any, Array], object]) -> None:
        """Tell an array or a tensor once, into which others are copied."""
        if id(value) not in self.seen:
            self.seen.add(id(value))
            self._leaf(name, partial(take, value), partial(fill, value))

    def _optimiser(self, name: str, optimiser: Any) -> None:
        torch: Any = self._torch
        if isinstance(optimiser, torch.optim.LBFGS):
            self.unknown.append(f"{name} (history of LBFGS)")
        examples = enumerate(_examples_of(optimiser))
        for index, group in enumerate(optimiser.param_groups):
            options = ((key, value) for key, value in group.items() if key != "params")
            self._each(f"{name}.group{index}.", options, group.__setitem__)
            for parameter, (number, example) in zip(group["params"], examples, strict=False):
                self._moments(f"{name}.{number}.", optimiser.state, parameter, example)

    def _moments(self, before: str, states: Any, parameter: Any, example: Mapping[str, Any]) -> None:
        """Tell what an optimiser remembers of one parameter; before its first step that is nothing."""
        known = states.get(parameter, {})
        fresh = copy.deepcopy({key: one for key, one in example.items() if key not in known})
        self._kept.append(made := {"there": bool(known), **fresh, **known})
        self._each(before, [(key, made[key]) for key in ("there", *example)], made.__setitem__)
        if self._put and made.pop("there"):
            states[parameter] = made
        elif self._put:
            states.pop(parameter, None)


@functools.cache
def _told_as(torch: Any, kind: type) -> str:
    """Return as what values of a type are told; "": that depends on the value."""
    kinds: list[tuple[str, Any]] = [("array", np.ndarray), ("generator", np.random.Generator), ("number", NUMBERS)]
    if torch is not None:
        kinds += [("module", torch.nn.Module), ("tensor", torch.Tensor), ("optimiser", torch.optim.Optimizer)]
        kinds += [("torch's generator", torch.Generator)]
    return next((name for name, those in kinds if issubclass(kind, those)), "")


def _nowhere(*_: Any) -> None:
    """Put nothing anywhere: an array is copied into, and stays where it is."""


def _is_constant(value: Any) -> bool:
    """Return whether nothing can change in it: frozen dataclasses, torch's dtypes and devices."""
    torch, kind = sys.modules.get("torch"), getattr(type(value), "__dataclass_params__", None)
    return getattr(kind, "frozen", False) or (torch is not None and isinstance(value, torch.dtype | torch.device))


def _number_bytes(name: str, value: Any) -> Array:
    """A number's kind and eight bytes of it, so that one that was None, or whole, may become another."""
    kind = next(NUMBERS.index(one) for one in type(value).__mro__ if one in NUMBERS)
    number = 0 if value is None else value
    try:
        packed = struct.pack(_FORMS[kind], kind, float(number) if _FORMS[kind] == "<Bd" else int(number))
    except struct.error as error:
        raise OverflowError(f"{name}: expected a whole number of at most 64 bits to keep, got {value}") from error
    return np.frombuffer(packed, np.uint8)


def _number_of(array: Array) -> bool | float | None:
    kind: Any = NUMBERS[int(array[0])]
    number = struct.unpack(_FORMS[int(array[0])], array.astype(np.uint8).tobytes())[1]
    return None if kind is type(None) else kind(number)


def _fill(tensor: Any, array: Array) -> None:
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        into = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        into.copy_(torch.as_tensor(array))


_EXAMPLES: weakref.WeakKeyDictionary[Any, list[Mapping[str, Any]]] = weakref.WeakKeyDictionary()


def _examples_of(optimiser: Any) -> list[Mapping[str, Any]]:
    """Return for each parameter zeros like the optimiser's state, which a step of a copy shows."""
    torch: Any = sys.modules["torch"]
    found = _EXAMPLES.get(optimiser)
    if found is None or len(found) != sum(len(group["params"]) for group in optimiser.param_groups):
        trial = copy.deepcopy(optimiser)
        trial.state.clear()
        parameters = [one for group in trial.param_groups for one in group["params"]]
        for one in parameters:
            one.grad = torch.zeros_like(one)
        if not isinstance(trial, torch.optim.LBFGS):  # its history grows, and begins anew
            trial.step()
        found = _EXAMPLES[optimiser] = [_zeros(torch, trial.state.get(one, {})) for one in parameters]
    return found


def _zeros(torch: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: 0 for key, value in state.items() if isinstance(value, int | float)}
    return numbers | {key: torch.zeros_like(one) for key, one in state.items() if isinstance(one, torch.Tensor)}
