"""State that wrappers keep from one episode to the next, as plain text: taken out of one environment, put into another.

A wrapper with `get_state()` and `set_state(state)` says what that is, and so may an environment, whose class says
`keeps_state = True` besides: many have methods of these names for where their bodies are, which is of an episode alone.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import NormalizeObservation

from mlxe_async.errors import TaskError
from mlxe_async.settings.task import MOST_STATE_BYTES
from mlxe_async.tasks.help import layers_of
from mlxe_async.tasks.hostile import described, words_of

_DEEPEST = 20
_PLAIN = "None, truth values, numbers, strings, lists, dicts with strings as keys, or numpy arrays of numbers"


def kept_by(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """The layers of an environment that keep state, by their class's name, the innermost of several alike first."""
    found: dict[str, Any] = {}
    for layer in reversed(list(layers_of(env))):
        if _keeps(layer):
            name = type(layer).__qualname__
            alike = sum(other.partition("#")[0] == name for other in found)
            found[f"{name}#{alike + 1}" if alike else name] = layer
    return found


def text_of(layers: dict[str, Any]) -> str:
    """The state of layers as text; the same state gives the same text.

    Raises:
        TaskError: a layer raised, told of something that is not plain, or of too much.
    """
    told = {}
    for name, layer in layers.items():
        place = f"task.wrappers: {name}.get_state()"
        try:
            state = _get(layer)
        except BaseException as error:
            raise TaskError(f"{place}: raised {words_of(error)}") from error
        told[name] = _plain(state, place, "", 0)
    text = json.dumps(told, separators=(",", ":"))
    if len(text) > MOST_STATE_BYTES:
        sizes = ", ".join(f"{name} {len(json.dumps(one)):,}" for name, one in told.items())
        raise TaskError(
            f"task.wrappers: get_state() of {sizes} bytes as text, expected at most {MOST_STATE_BYTES:,} in all"
        )
    return text


def states_in(text: str) -> dict[str, Any]:
    """The state of each layer that a text tells of, as its `get_state()` gave it."""
    return {name: _unplain(state) for name, state in json.loads(text).items()}


def differences(one: str, other: str) -> list[str]:
    """Names of the layers of which two texts tell different states; the order in a dict is none."""
    first, second = json.loads(one), json.loads(other)
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def put(layers: dict[str, Any], text: str, otherwise: str) -> None:
    """Have layers go on with the state in a text; those that it does not name with that of another one.

    Raises:
        BaseException: whatever a layer's `set_state` raises.
    """
    known = json.loads(otherwise or "{}") | json.loads(text or "{}")
    for name, layer in layers.items():
        _set(layer, _unplain(known[name]))


def freeze(layers: dict[str, Any]) -> None:
    """Have gymnasium's own wrappers learn nothing more."""
    for layer in layers.values():
        if isinstance(layer, NormalizeObservation):
            layer.update_running_mean = False


def _keeps(layer: Any) -> bool:
    if isinstance(layer, NormalizeObservation):
        return True
    kind = type(layer)
    has_both = all(callable(getattr(kind, name, None)) for name in ("get_state", "set_state"))
    return has_both and (isinstance(layer, gymnasium.Wrapper) or getattr(kind, "keeps_state", False) is True)


def _get(layer: Any) -> Any:
    if callable(getattr(type(layer), "get_state", None)):
        return layer.get_state()
    rms = layer.obs_rms
    return {"mean": np.asarray(rms.mean), "var": np.asarray(rms.var), "count": float(rms.count)}


def _set(layer: Any, state: Any) -> None:
    if callable(getattr(type(layer), "set_state", None)):
        layer.set_state(state)
        return
    layer.obs_rms.mean, layer.obs_rms.var, layer.obs_rms.count = state["mean"], state["var"], state["count"]


def _plain(value: Any, place: str, path: str, depth: int) -> Any:
    """A state in JSON, from which `_unplain` makes it again; scalars stand for themselves."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if depth > _DEEPEST:
        raise TaskError(f"{place}{_at(path)}: got more than {_DEEPEST} levels, expected fewer")
    if type(value) is list:
        return [_plain(one, place, f"{path}[{number}]", depth + 1) for number, one in enumerate(value)]
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise TaskError(f"{place}{_at(path)}: got the key {described(key)}, expected strings as keys")
        return {"dict": {key: _plain(one, place, f"{path}.{key}", depth + 1) for key, one in value.items()}}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        kind = "array" if isinstance(value, np.ndarray) else "number"
        if value.nbytes > MOST_STATE_BYTES:
            raise TaskError(f"{place}{_at(path)}: got {value.nbytes:,} bytes, expected at most {MOST_STATE_BYTES:,}")
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {kind: [value.dtype.str, list(value.shape), data]}
    raise TaskError(f"{place}{_at(path)}: got {described(value)}, expected {_PLAIN}")


def _at(path: str) -> str:
    return f", {path.lstrip('.')}" if path else ""


def _unplain(told: Any) -> Any:
    if isinstance(told, list):
        return [_unplain(one) for one in told]
    if not isinstance(told, dict):
        return told
    ((kind, value),) = told.items()
    return _MADE_OF[kind](value)


def _array(told: Any) -> Any:
    dtype, shape, data = told
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()


_MADE_OF: dict[str, Callable[[Any], Any]] = {
    "dict": lambda told: {key: _unplain(one) for key, one in told.items()},
    "float": float,
    "array": _array,
    "number": lambda told: _array(told)[()],
}
