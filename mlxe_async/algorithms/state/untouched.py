"""Keeps what an object holds, and puts back whatever was changed in it since: other code may try it out in between."""

from __future__ import annotations

import collections
import contextlib
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mlxe_async.algorithms.state import inside

Undo = Callable[[], None]


@contextlib.contextmanager
def untouched(parts: Mapping[str, Any], skip: Callable[[Any], bool] = lambda _value: False) -> Iterator[list[Any]]:
    """Have the parts, all that they hold, and the generators of the process be afterwards what they were.

    Args:
        parts: name -> value; the values themselves are put back, not the mapping.
        skip: whether a value is left alone.

    Yields:
        all that they hold.
    """
    held = [value for _, value in inside.walk(parts, skip, sys.maxsize)]
    undoing = [undo for value in held if (undo := _undo(value)) is not None]
    with generators_untouched():
        try:
            yield held
        finally:
            for undo in reversed(undoing):
                undo()


@contextlib.contextmanager
def generators_untouched() -> Iterator[None]:
    """Have the global generators of Python, numpy and torch be afterwards what they were."""
    torch: Any = sys.modules.get("torch")
    pythons, numpys = random.getstate(), np.random.get_state(legacy=False)
    torchs = None if torch is None else torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
        if torch is not None and torchs is not None:
            torch.set_rng_state(torchs)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)


def seed_globals(seed: int) -> None:
    """Have all that the global generators of Python, numpy and torch draw follow from a seed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        # torch.manual_seed looks for other devices each time, which takes a millisecond.
        (torch if torch.cuda.is_initialized() else torch.default_generator).manual_seed(seed)


def _undo(value: Any) -> Undo | None:
    """Return what makes one thing again what it is now; None: nothing of its own can change."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _undo_tensor(torch, value)
    if torch is not None and isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    if isinstance(value, np.ndarray):
        return _undo_array(value)
    if isinstance(value, np.random.Generator):
        return _setting(value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, random.Random):
        state = value.getstate()
        return lambda: value.setstate(state)
    if isinstance(value, (*inside.LEAVES, *inside.STILL)):
        return None
    return _all((_undo_contents(value), *_undo_tables(value), _undo_attributes(value)))


def _all(undoing: Iterable[Undo | None]) -> Undo | None:
    found = [undo for undo in undoing if undo is not None]

    def undo() -> None:
        for one in found:
            one()

    return undo if found else None


def _undo_tensor(torch: Any, tensor: Any) -> Undo:
    before = tensor.detach().clone()

    def undo() -> None:
        with torch.no_grad():
            if not torch.equal(tensor, before):
                tensor.copy_(before)

    return undo


def _undo_array(array: np.ndarray[Any, Any]) -> Undo | None:
    if not array.flags.writeable:
        return None
    before = array.copy()

    def undo() -> None:
        array[...] = before

    return undo


def _setting(holder: Any, name: str, value: Any) -> Undo:
    return lambda: setattr(holder, name, value)


def _undo_contents(value: Any) -> Undo | None:
    """Return what undoes changes of a container or of a closure; None: it holds nothing that can change."""
    if isinstance(value, types.FunctionType):
        cells = [cell for cell in value.__closure__ or () if cell != types.CellType()]
        return _all(_setting(cell, "cell_contents", cell.cell_contents) for cell in cells)
    if isinstance(value, list):
        items = list(value)
        return lambda: value.__setitem__(slice(None), items)
    if isinstance(value, dict | set | collections.deque):
        kept = value.copy()
        add: Any = value.extend if isinstance(value, collections.deque) else value.update

        def undo() -> None:
            value.clear()
            add(kept)

        return undo
    return None


def _undo_tables(value: Any) -> Iterator[Undo | None]:
    """Yield what undoes changes of a torch module's parameters, buffers, modules and hooks."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        yield from (_undo_contents(table) for table in vars(value).values() if isinstance(table, dict))


def _undo_attributes(value: Any) -> Undo | None:
    own = getattr(value, "__dict__", None)
    slots = {name: one for name, one in inside.attributes(value).items() if own is None or name not in own}
    if not isinstance(own, dict) and not slots:
        return None
    kept = dict(own) if isinstance(own, dict) else {}

    def undo() -> None:
        if isinstance(own, dict) and (own.keys() != kept.keys() or any(own[key] is not kept[key] for key in kept)):
            own.clear()
            own.update(kept)
        for name in inside.attributes(value).keys() - slots.keys() - kept.keys():
            object.__delattr__(value, name)  # a slot that was empty
        for name, one in slots.items():
            if getattr(value, name, None) is not one:
                object.__setattr__(value, name, one)

    return undo
