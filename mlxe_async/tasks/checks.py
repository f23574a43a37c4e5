"""The contract of an environment's answers, part by part. Each check raises `Broken` with field, expected and got."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlxe_async.rows import Array
from mlxe_async.tasks.hostile import described, words_of

LARGEST = float(np.finfo(np.float32).max)
MOST_WHOLE = 2.0**24


class Broken(Exception):
    """An answer of the environment does not keep the contract."""


def five(answer: Any) -> Any:
    """The answer of a step if it has the five parts, in a tuple of another type; else what is wrong with it."""
    wanted = "step must return (observation, reward, terminated, truncated, info)"
    if not isinstance(answer, tuple):
        raise Broken(f"{wanted}, got {described(answer)}")
    if len(answer) != 5:
        hint = "; is it an environment of the old gym, with one done?" if len(answer) == 4 else ""
        raise Broken(f"{wanted}, got {len(answer)} values{hint}")
    return answer


def two(answer: Any) -> Any:
    """The answer of a reset if it has the two parts."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        hint = "" if isinstance(answer, tuple) else "; if this is an environment of the old gym: return observation, {}"
        raise Broken(f"reset must return (observation, info), got {described(answer)}{hint}")
    return answer


def real(reward: Any) -> float:
    """A reward as a float that float32 can hold; truth values are none, and of arrays only those of one number are."""
    if is_array_of_one(reward):
        reward = reward.reshape(())[()]
    number = isinstance(reward, (int, float, np.integer, np.floating)) and not isinstance(reward, (bool, np.bool_))
    if not number:
        raise Broken(f"reward: expected one real number, got {described(reward)}")
    try:
        value = float(reward)
    except OverflowError:
        value = math.inf
    if not -LARGEST <= value <= LARGEST:
        raise Broken(f"reward: expected a finite number, got {described(reward)}")
    return value


def beyond(value: Array, low: Array, high: Array, name: str = "entry ") -> str:
    """The first entry of an observation that is not between its bounds, of one shape with it; empty if all are."""
    outside = np.argwhere((value < low) | (value > high))
    if not len(outside):
        return ""
    first = tuple(outside[0].tolist())
    entry = f"{name}[{', '.join(map(str, first))}]" if first else name.rstrip()
    others = f" ({len(outside)} of {value.size} entries are beyond)" if len(outside) > 1 else ""
    return f"{entry} is {value[first]:g}, expected {low[first]:g} to {high[first]:g}, the bounds of the space{others}"


def is_array_of_one(reward: Any) -> bool:
    """Return whether it is an array of shape () or (1,)."""
    return type(reward) is np.ndarray and reward.shape in ((), (1,))


def loses_digits(array: Array, stored: np.dtype[Any]) -> bool:
    """Return whether whole numbers are too large for float32, which knows each one only up to 2^24."""
    if stored.kind != "f" or array.dtype.itemsize < 4 or array.dtype == stored or array.dtype.kind not in "iuf":
        return False
    with np.errstate(all="ignore"):
        large = np.abs(array.astype(np.float64)) > MOST_WHOLE
        return bool(large.any() and (array[large] != array[large].astype(stored)).any())


def flag(name: str, value: Any) -> bool:
    """`terminated` or `truncated` as a bool; a number is none."""
    if not isinstance(value, (bool, np.bool_)):
        raise Broken(f"{name}: expected True or False, got {described(value)}")
    return bool(value)


def observation(
    obs: Any,
    shape: tuple[int, ...],
    stored: np.dtype[Any],
    declared: np.dtype[Any] | None,
    name: str = "observation",
) -> tuple[Array, bool]:
    """An observation, or a part of one, of exactly this shape, whose numbers survive being stored.

    Returns:
        The observation as an array, and whether it has the dtype that its space declares.
    """
    try:
        array = np.asarray(obs)
    except BaseException as error:  # noqa: BLE001 - an object's own conversion is foreign code too
        raise Broken(f"{name} cannot be made an array ({words_of(error)})") from None
    if array.shape != shape:
        raise Broken(f"{name}: expected shape {shape}, got {described(obs)}")
    if array.dtype.kind not in "fiub":
        raise Broken(f"{name}: expected numbers of dtype {stored}, got {described(obs)}")
    cast = stored.kind == "u" and array.dtype != stored
    if cast and not bool(np.all((array >= 0) & (array <= 255) & (array == np.floor(array)))):
        raise Broken(f"{name}: expected whole numbers from 0 to 255, got {described(obs)}")
    return array, array.dtype == declared


def finite(obs: Array, name: str = "observation") -> None:
    """Refuse a stored observation (O,), or a part of one, with a NaN or an infinity, naming the first."""
    if not np.isfinite(obs).all():
        where = tuple(int(n) for n in np.argwhere(~np.isfinite(obs))[0])
        raise Broken(f"{name}: expected finite numbers, got {float(obs[where])} at index {list(where)}")
