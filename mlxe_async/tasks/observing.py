"""From an environment's own observations to the arrays that are stored, for all spaces but a plain Box.

| space | stored as |
|---|---|
| Box | its numbers, in its own shape: float32, or bytes where it is of uint8; without an entry, one 0 |
| Discrete | one-hot |
| MultiDiscrete | the one-hots of its entries, one after the other |
| MultiBinary | 0 and 1 as floats |
| Dict, Tuple | their leaves in one array, see `parts` |

A task's mask of allowed actions is one more leaf of bytes, so that it goes where the observation goes. Each leaf is
checked before it is stored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from mlxe_async import parts as packing
from mlxe_async.errors import TaskError
from mlxe_async.parts import BYTES, FLOATS, Part
from mlxe_async.rows import MASK, WHOLE, Array
from mlxe_async.tasks import checks
from mlxe_async.tasks.hostile import described, one_line, words_of

_USABLE = "a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of these"
_Fill = Callable[[Any, Array], bool]
"Checks a leaf's value and writes it into the leaf's view; returns whether the value is of the dtype of its space."


@dataclass(frozen=True)
class Leaf:
    """A space without parts.

    Args:
        name: of its part.
        keys: what leads to it from the observation.
        space: a Box, Discrete, MultiDiscrete or MultiBinary.
    """

    name: str
    keys: tuple[Any, ...]
    space: Any

    @property
    def form(self) -> tuple[str, tuple[int, ...], str]:
        """Name, shape and dtype as stored."""
        space = self.space
        if isinstance(space, spaces.Box):
            if is_empty(space):
                return self.name, (1,), FLOATS
            return self.name, tuple(map(int, space.shape)), BYTES if space.dtype == np.uint8 else FLOATS
        if isinstance(space, spaces.Discrete):
            return self.name, (int(space.n),), FLOATS
        if isinstance(space, spaces.MultiDiscrete):
            return self.name, (int(space.nvec.sum()),), FLOATS
        return self.name, (int(np.prod(space.shape)),), FLOATS


def packing_of(env_id: str, space: Any, observe: Sequence[str], mask: Sequence[int]) -> Packing | None:
    """Return what makes stored observations of those of a space; None where they can be stored as they are.

    Args:
        env_id: the environment's name, for messages.
        space: of its observations.
        observe: names of the parts that are wanted, of those that a Dict or Tuple has at its top; empty: all.
        mask: choices of each entry of an action, if the environment's masks are wanted; else empty.

    Raises:
        TaskError: a space that cannot be used, or of which only parts can, with what to write; or `observe` names
            something else.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        leaves = _chosen(env_id, space, observe, has_mask=bool(mask))
    else:
        if observe:
            raise TaskError(
                f"task.observe: chooses among the parts of a Dict or a Tuple, {env_id} shows {_words(space)}; take it "
                "out"
            )
        if not _is_usable(space):
            raise TaskError(
                f"task.env: {env_id}: observation space {_words(space)} is not supported, expected {_USABLE}"
            )
        if isinstance(space, spaces.Box) and space.shape and not is_empty(space) and not mask:
            return None
        leaves = [Leaf(WHOLE, (), space)]
    return Packing(env_id, space, leaves, tuple(mask))


class Packing:
    """Makes stored observations of an environment's own, one at a time, and checks them.

    Args:
        env_id: the environment's name, for messages.
        space: of its observations.
        leaves: those that are stored.
        mask: choices of each entry of an action, if masks are stored; else empty.

    Attributes:
        parts: of a stored observation; empty where it is one vector.
        shape: of a stored observation.
        dtype: of a stored observation, numpy's string.
        has_bounds: whether any leaf declares bounds that can be left.
        shows_mask: whether observations have an entry `action_mask`, so that `info` need not.
        sizes: choices of each integer, where an observation is made of nothing but one-hots; else empty.
        leaves: each leaf with the part that it is stored as.
        mask: the part that is the mask, and the choices of each entry; None where masks are not stored.
    """

    def __init__(self, env_id: str, space: Any, leaves: Sequence[Leaf], mask: tuple[int, ...]) -> None:
        self._choices, total = mask, sum(mask)
        self._ranges = [(sum(mask[:entry]), sum(mask[: entry + 1])) for entry in range(len(mask))]
        # A Dict that shows the mask among its entries need not give it in `info`, too.
        self.shows_mask = isinstance(space, spaces.Dict) and MASK in space.spaces
        forms = [leaf.form for leaf in leaves] + ([(MASK, (total,), BYTES)] if mask else [])
        names = [name for name, *_ in forms]
        if len(set(names)) < len(names):
            raise TaskError(_twice(env_id, names))
        parts = packing.laid_out(forms)
        (length,), self.dtype = packing.stored_as(parts)
        self.shape = (length,)
        self._row = np.zeros(length, self.dtype)
        is_bytes = self.dtype == BYTES
        views = {part.name: packing.view(part, self._row, is_bytes=is_bytes) for part in parts}
        self._leaves = [(leaf, views[leaf.name], _filling(leaf)) for leaf in leaves]
        self._allowed = views.get(MASK) if mask else None
        self._by_name = {part.name: part for part in parts}
        self.leaves = [(leaf, self._by_name[leaf.name]) for leaf in leaves]
        self.mask = (self._by_name[MASK], mask) if mask else None
        self._numbers = [
            (leaf, view)
            for leaf, view, _ in self._leaves
            if isinstance(leaf.space, spaces.Box) and view.dtype == FLOATS
        ]
        first, _ = packing.counted(parts)
        self._floats = packing.as_floats(self._row[: packing.FLOAT_BYTES * first]) if is_bytes else self._row
        self._bounds = [(self._by_name[leaf.name], *found) for leaf in leaves if (found := _bounds_of(leaf.space))]
        self.has_bounds = bool(self._bounds)
        is_vector = len(parts) == 1 and leaves[0].name == WHOLE and not leaves[0].keys and not is_bytes
        self.parts: tuple[Part, ...] = () if is_vector else parts
        sizes = [_sizes_of(leaf.space) for leaf in leaves]
        self.sizes = tuple(size for some in sizes for size in some) if all(sizes) and not mask else ()

    def take(self, obs: Any, info: Any, *, over: bool) -> tuple[Array, list[str]]:
        """An observation as it is stored, in memory that the next one overwrites; finite.

        Args:
            obs: the environment's own.
            info: what came with it, for the mask.
            over: whether the episode ended with it; then a mask may be missing, and all is allowed.

        Returns:
            The stored observation, and what is odd about it, in words.

        Raises:
            checks.Broken: the observation or the mask is not what the space says.
        """
        odd = []
        with np.errstate(all="ignore"):  # what does not fit float32 is not finite, and found below
            for leaf, view, fill in self._leaves:
                if not fill(value := reached(obs, leaf), view):
                    came = getattr(value, "dtype", None) or type(value).__name__
                    odd.append(f"{label_of(leaf)} comes as {came}, and the space says {leaf.space.dtype}: it is cast")
                if isinstance(leaf.space, spaces.Box) and checks.loses_digits(np.asarray(value), view.dtype):
                    odd.append(f"{label_of(leaf)} beyond 2^24 loses digits as float32; show it smaller")
        if self._numbers and b"\0" in np.isfinite(self._floats).tobytes():
            for leaf, view in self._numbers:
                checks.finite(view, label_of(leaf))
        if self._allowed is not None:
            self._take_mask(obs, info, over=over)
        return self._row, odd

    def outside(self, stored: Array) -> Array:
        """Which of stored observations (B, O) have an entry outside its bounds (B,)."""
        found = np.zeros(len(stored), np.bool_)
        for part, low, high in self._bounds:
            values = packing.view(part, stored, is_bytes=self.dtype == BYTES)
            found |= ((values < low) | (values > high)).reshape(len(stored), -1).any(1)
        return found

    def beyond(self, stored: Array) -> str:
        """The first entry of a stored observation (O,) that is outside its bounds, in words; empty if none is."""
        for part, low, high in self._bounds:
            value = packing.view(part, stored[None], is_bytes=self.dtype == BYTES)[0]
            name = "observation" if part.name == WHOLE else f"observation.{part.name}"
            low, high = (np.broadcast_to(one, value.shape) for one in (low, high))
            if what := checks.beyond(value, low, high, name):
                return what
        return ""

    def _take_mask(self, obs: Any, info: Any, *, over: bool) -> None:
        where = f"observation.{MASK}" if self.shows_mask else f'info["{MASK}"]'
        found = _entry(obs if self.shows_mask else info, MASK)
        total, allowed = sum(self._choices), self._allowed
        assert allowed is not None  # noqa: S101 - see `take`
        if found is None and over:
            allowed[...] = 1
            return
        told = _zeros_and_ones(found, self._choices)
        if told is None:
            raise checks.Broken(f"{where}: expected {total} of 0 or 1, got {described(found)}")
        allowed[...] = np.frombuffer(told, np.uint8)
        for entry, (start, end) in enumerate(self._ranges):
            if 1 not in told[start:end]:
                if not over:
                    which = f" of entry {entry}" if len(self._choices) > 1 else ""
                    raise checks.Broken(f"{where}: expected at least one allowed choice{which}, got none")
                allowed[start:end] = 1


# -- which leaves there are --------------------------------------------------------------------------------------------


def _chosen(env_id: str, space: Any, observe: Sequence[str], *, has_mask: bool) -> list[Leaf]:
    """The leaves of a Dict or Tuple that `observe` wants."""
    entries = list(_tops(space))
    tops = dict(entries)
    if len(tops) < len(entries):
        raise TaskError(_twice(env_id, [name for name, _ in entries]))
    usable = [name for name, (_, part) in tops.items() if _is_usable(part)]
    if has_mask and isinstance(space, spaces.Dict):
        usable = [name for name in usable if name != MASK]
    if not usable:
        raise TaskError(
            f"task.env: {env_id}: nothing of the observation space {_words(space)} is supported, expected {_USABLE}"
        )
    line = f"observe = [{', '.join(map(_quoted, usable))}]"
    unknown = [name for name in observe if name not in tops]
    if unknown:
        raise TaskError(
            f"task.observe: {env_id} shows no {_quoted(unknown[0])}, expected some of {', '.join(map(_quoted, usable))}"
        )
    wanted = [name for name in tops if (name in observe or not observe) and not (has_mask and name == MASK)]
    odd = [name for name in wanted if name not in usable]
    if odd:
        told = ", ".join(f"{_quoted(name)} ({type(tops[name][1]).__name__})" for name in odd)
        key, do = ("task.observe", "write") if observe else ("task.env", "leave it out by this line of [task]:")
        raise TaskError(f"{key}: {env_id}: {told} cannot be made numbers of a fixed size; {do} {line}")
    return [leaf for name in wanted for leaf in _leaves(tops[name][1], name, (tops[name][0],))]


def _tops(space: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Name, key and space of each part at the top."""
    entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in entries:
        yield str(key), (key, part)


def _leaves(space: Any, name: str, keys: tuple[Any, ...]) -> Iterator[Leaf]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for below, (key, part) in _tops(space):
            yield from _leaves(part, f"{name}.{below}", (*keys, key))
    else:
        yield Leaf(name, keys, space)


def _is_usable(space: Any) -> bool:
    """Return whether it can be made numbers of a fixed size."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return bool(space.spaces) and all(_is_usable(part) for _, (_, part) in _tops(space))
    if isinstance(space, spaces.Box):
        return space.dtype is not None and space.dtype.kind in "fiub"
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def _sizes_of(space: Any) -> tuple[int, ...]:
    """Choices of each integer that is stored as a one-hot; empty for other spaces."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    return tuple(map(int, space.nvec.ravel())) if isinstance(space, spaces.MultiDiscrete) else ()


def _bounds_of(space: Any) -> tuple[Array, Array] | None:
    if not isinstance(space, spaces.Box) or (np.isinf(space.low).all() and np.isinf(space.high).all()):
        return None
    return np.asarray(space.low), np.asarray(space.high)


def _twice(env_id: str, names: list[str]) -> str:
    name = next(name for name, count in Counter(names).items() if count > 1)
    return f'task.env: {env_id}: two parts of its observations are called "{name}"; rename one'


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _words(space: Any) -> str:
    return one_line(str(space))


# -- what their values are ---------------------------------------------------------------------------------------------


def label_of(leaf: Leaf) -> str:
    """Return what a leaf is called in messages."""
    return f"observation.{leaf.name}" if leaf.keys else "observation"


def reached(obs: Any, leaf: Leaf) -> Any:
    """The value that a leaf's keys lead to."""
    for depth, key in enumerate(leaf.keys):
        found = obs.get(key) if type(obs) is dict else _entry(obs, key)
        if found is None:
            inside = ".".join(("observation", *map(str, leaf.keys[:depth])))
            raise checks.Broken(f"{inside}: expected an entry {key!r}, got {described(obs)}")
        obs = found
    return obs


def _entry(container: Any, key: Any) -> Any:
    """Return what a mapping or a tuple has under a key or index; None where there is nothing, or it is neither."""
    try:
        if isinstance(container, Mapping):
            return container.get(key)
        if isinstance(container, (tuple, list)) and type(key) is int and key < len(container):
            return container[key]
    except BaseException as error:  # noqa: BLE001 - a mapping of the environment's own is foreign code
        raise checks.Broken(f"asking the observation for {key!r} raised {words_of(error)}") from None
    return None


def _zeros_and_ones(mask: Any, choices: Sequence[int]) -> bytes | None:
    """A mask of all choices, a byte each, also of one array for each entry; None where it is anything else."""
    try:
        if isinstance(mask, (tuple, list)) and len(choices) > 1:
            pieces = list(_pieces(mask))
            if [piece.shape for piece in pieces] == [(size,) for size in choices]:
                mask = np.concatenate(pieces)
        array = np.asarray(mask)
    except BaseException:  # noqa: BLE001 - an object's own conversion is foreign code, and it is told what came
        return None
    if array.shape != (sum(choices),) or array.dtype.kind not in "biuf":
        return None
    if array.dtype.itemsize > 1:
        array = np.where((array == 0) | (array == 1), array, 2).astype(np.uint8)
    told = array.tobytes()
    return None if told.strip(b"\0\1") else told


def _pieces(mask: Any) -> Iterator[Array]:
    """The arrays in tuples of tuples; a tuple of numbers counts as an array."""
    if isinstance(mask, (tuple, list)) and mask and not np.isscalar(mask[0]):
        for one in mask:
            yield from _pieces(one)
    else:
        yield np.asarray(mask)


def _filling(leaf: Leaf) -> _Fill:
    space, label = leaf.space, label_of(leaf)
    if is_empty(space):
        return _fills_nothing(space, label)
    if isinstance(space, spaces.Box):
        return _fills_box(space, label)
    if isinstance(space, spaces.Discrete):
        return _fills_one_hot(int(space.n), int(space.start), label)
    if isinstance(space, spaces.MultiDiscrete):
        return _fills_one_hots(space, label)
    return _fills_binary(space, label)


def is_empty(space: Any) -> bool:
    """Return whether a Box has no entry, as where there is no state to show, such as a bandit's."""
    return isinstance(space, spaces.Box) and 0 in space.shape


def _fills_nothing(space: Any, label: str) -> _Fill:
    shape, declared = tuple(map(int, space.shape)), np.dtype(space.dtype)

    def fill(value: Any, view: Array) -> bool:
        _, same = checks.observation(value, shape, np.dtype(FLOATS), declared, label)
        view[...] = 0
        return same

    return fill


def _fills_box(space: Any, label: str) -> _Fill:
    shape, declared = tuple(map(int, space.shape)), np.dtype(space.dtype)
    stored = np.dtype(BYTES if declared == np.uint8 else FLOATS)

    def fill(value: Any, view: Array) -> bool:
        if type(value) is np.ndarray and value.dtype is declared and value.shape == shape:
            view[...] = value
            return True
        array, same = checks.observation(value, shape, stored, declared, label)
        view[...] = array
        return same or not (shape or isinstance(value, np.ndarray))  # a number of Python's has no type of its own

    return fill


def _fills_one_hot(count: int, start: int, label: str) -> _Fill:
    def fill(value: Any, view: Array) -> bool:
        index = (value if type(value) is int else _whole(value, (), label).item()) - start
        if not 0 <= index < count:
            raise checks.Broken(f"{label}: expected from {start} to {start + count - 1}, got {described(value)}")
        view[...] = 0
        view[index] = 1
        return True

    return fill


def _fills_one_hots(space: Any, label: str) -> _Fill:
    counts, starts = space.nvec.ravel().astype(np.int64), space.start.ravel().astype(np.int64)
    places = np.cumsum(counts) - counts

    def fill(value: Any, view: Array) -> bool:
        indexes = _whole(value, space.nvec.shape, label).ravel().astype(np.int64) - starts
        if ((indexes < 0) | (indexes >= counts)).any():
            raise checks.Broken(f"{label}: expected an entry of {_words(space)}, got {described(value)}")
        view[...] = 0
        view[places + indexes] = 1
        return True

    return fill


def _fills_binary(space: Any, label: str) -> _Fill:
    def fill(value: Any, view: Array) -> bool:
        array = _whole(value, space.shape, label, "iubf")
        if not ((array == 0) | (array == 1)).all():
            raise checks.Broken(f"{label}: expected 0 and 1 only, got {described(value)}")
        view[...] = array.ravel()
        return True

    return fill


def _whole(value: Any, shape: tuple[int, ...], label: str, kinds: str = "iub") -> Array:
    """Whole numbers of exactly this shape."""
    try:
        array = np.asarray(value)
    except BaseException as error:  # noqa: BLE001 - an object's own conversion is foreign code
        raise checks.Broken(f"{label} cannot be made an array ({words_of(error)})") from None
    if array.shape != shape or array.dtype.kind not in kinds:
        wanted = f"whole numbers of shape {shape}" if shape else "a whole number"
        raise checks.Broken(f"{label}: expected {wanted}, got {described(value)}")
    return array
