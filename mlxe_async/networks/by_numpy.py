"""Layers evaluated by numpy on their own weights: for a few rows, torch's calls cost more than the sums.

Each kind of layer has one step here, which networks of arrays (`dense.Dense`) and plain `nn.Sequential` networks of an
author (`sequential`) share. Training by numpy keeps what its way back needs, and is spelled in `fast.dense`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, starmap
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as all_modules

from mlxe_async.networks.noisy import NoisyLinear
from mlxe_async.rows import Array

Step = Callable[[Any], Any]
"""Input (..., n) -> output; of a recurrent cell, both with its states. None: torch is to say what becomes of it."""


_HOOKS_OF_ALL_KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CALLS = ("_call_impl", "_compiled_call_impl", "forward")
_HOOKS, _WAYS = itemgetter("_forward_hooks", "_forward_pre_hooks"), attrgetter("forward", "__call__")


class Steps:
    """The numpy steps of a network's layers, on views of the weights; stale as soon as a layer has changed.

    It is no state of the network that it belongs to.

    Args:
        network: of layers, which may be networks of layers.
        watched: its own attributes and hooks count, too.
        exact: also parameters that are others on the same memory, and dicts of hooks that are others, are noticed.
    """

    def __init__(self, network: Any, *, watched: bool = True, exact: bool = False) -> None:
        self._modules = modules = [*_parts(network)]
        inside = [vars(one) for one in modules]
        self._kinds = [*{*map(type, modules)}]
        self._inside = inside if watched else inside[1:]
        self._exact, self._place = exact, where if exact else torch.Tensor.data_ptr
        self._hooks = [*chain.from_iterable(map(_HOOKS, self._inside))]
        kinds = ("_modules", "_parameters") if exact else ("_modules",)
        self._held = [own[name] for own in inside for name in kinds if own[name]]
        parameters = [own["_parameters"] for own in inside]
        self._tensors = [(held, name) for held in parameters for name, one in held.items() if one is not None]
        self._options = [
            (own, name)
            for own, one in zip(inside, modules, strict=True)
            for name in (KINDS[type(one)].options if type(one) in KINDS else ())
        ]
        self._seen = self._look()
        self.is_settled = False
        "True if all is taken to stay as it was, without a look."
        self.is_of_several = False
        "True if these are the steps of several networks, each with inputs of its own."
        self.is_new = False
        "True if the output never shares memory with the input."
        self.steps = self._made(modules if watched else modules[1:])

    def _made(self, watched: list[Any]) -> list[Step] | None:
        steps, own = list[Step](), False
        with torch.inference_mode():
            for layer in self._modules:
                kind = _kind_of(layer, is_placed=layer not in watched)
                if kind is None:
                    return None
                if kind.made is None:
                    continue
                step = kind.made(layer, own)
                if step is None:
                    return None
                steps.append(step)
                own = own or kind.is_new
        self.is_new = own
        return steps

    def hold(self) -> bool:
        """True if nothing changed: layers, their kinds, attributes, options and hooks, and where their weights are."""
        try:
            return self._look() == self._seen
        except (AttributeError, KeyError):  # a parameter is gone
            return False

    def _look(self) -> tuple[Any, ...]:
        """Return what must stay as it is; without a loop of Python's own, because it is asked in each step."""
        return (
            any(chain.from_iterable(map(_HOOKS, self._inside)) if self._exact else self._hooks),
            [*map(len, self._inside)],
            [*map(type, self._modules)] if self._exact else None,
            [*map(id, chain.from_iterable(map(dict.values, self._held)))],
            [*map(self._place, starmap(dict.__getitem__, self._tensors))],
            [*starmap(dict.__getitem__, self._options)],
            [*map(_WAYS, self._kinds)],
        )

    def through(self, x: Array) -> Array | None:
        """Outputs (..., outputs) for inputs (..., inputs); None: torch is to say what becomes of them."""
        found: Array | None = x
        for step in self.steps or ():
            if found is None:
                break
            found = step(found)
        return found

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing to load."""


def where(tensor: Any) -> Any:
    """Return what tells where a tensor's numbers are, and how they lie."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def memory(tensor: Any) -> Array | None:
    """A tensor's own memory; None: it is not plain float32 in main memory."""
    array = plain_array(tensor)
    return array if array is not None and array.dtype is _FLOAT32 else None


def plain_array(tensor: Any) -> Array | None:
    """A tensor's own memory, of whatever type; None: it is not plain, or not in main memory. Nothing is tracked."""
    if type(tensor) is not torch.Tensor and type(tensor) is not nn.Parameter:
        return None
    try:
        array: Array = tensor.numpy()
    except (RuntimeError, TypeError):  # torch's own word for: it is on a device, sparse, negated, of no numpy type
        return None
    return array


def is_plain(layer: Any, dtype: torch.dtype) -> bool:
    """Return whether a layer is one of torch's own, with nothing attached, and its parameters are plain tensors."""
    own = layer._parameters.values()
    kinds = (torch.Tensor, nn.Parameter)
    return is_torchs_own(layer) and all(
        type(one) in kinds and one.dtype == dtype and one.device.type == "cpu" for one in own
    )


def is_torchs_own(layer: Any) -> bool:
    """Return whether a layer is one of torch's own that is known here, with nothing attached."""
    return _kind_of(layer) is not None


def is_as_written(module: Any, ways: tuple[Any, Any]) -> bool:
    """Return whether calling a module is what its class was written to do: it has no hooks and no call of its own.

    Args:
        module: of any class.
        ways: what `forward` and `__call__` are as they are written.
    """
    kind, own = type(module), vars(module)
    attached = any(own[name] for name in _HOOKS_OF_ALL_KINDS) or any(name in own for name in _CALLS)
    return (kind.forward, kind.__call__) == ways and not attached and not is_heard()


def is_heard() -> bool:
    """Return whether hooks listen to all modules."""
    return bool(all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks)


def _parts(network: Any) -> Iterator[Any]:
    """A network and all of its layers, in order."""
    yield nn.Module() if network is None else network
    if network is None:
        return
    for layer in network._modules.values():
        yield from _parts(layer)


# -- kinds of layers: the layer, and whether its input may be overwritten -> a step; None: it is no plain one --


def _linear(layer: Any, own: bool) -> Step | None:
    del own
    weight, bias = memory(layer.weight), layer.bias if layer.bias is None else memory(layer.bias)
    if (
        weight is None
        or weight.ndim != 2
        or (layer.bias is not None and (bias is None or bias.shape != weight.shape[:1]))
    ):
        return None
    columns, inputs, outputs = weight.T, weight.shape[1], len(weight)

    def step(x: Array) -> Array | None:
        if x.shape[-1] != inputs:
            return None
        y = np.dot(x if x.ndim < 3 else x.reshape(math.prod(x.shape[:-1]), inputs), columns)
        if bias is not None:
            y += bias
        found: Array = y if x.ndim < 3 else y.reshape(*x.shape[:-1], outputs)
        return found

    return step


def _noisy(layer: Any, own: bool) -> Step:
    del own

    def step(x: Array) -> Array:
        weight, bias = layer.by_numpy()
        return np.asarray(x @ weight + bias)

    return step


def _layer_norm(layer: Any, own: bool) -> Step | None:
    del own
    size, epsilon, scaled = np.float32(layer.normalized_shape[0]), np.float32(layer.eps), list[tuple[Any, Any]]()
    for one, apply in ((layer.weight, np.multiply), (layer.bias, np.add)):
        array = None if one is None else memory(one)
        if one is not None and (array is None or array.shape != layer.normalized_shape):
            return None
        if array is not None:
            scaled.append((apply, array))

    def step(x: Array) -> Array | None:
        if x.shape[-1] != size:
            return None
        y = x - np.add.reduce(x, -1, keepdims=True) / size
        variance = np.add.reduce(np.square(y), -1, keepdims=True) / size
        y /= np.sqrt(variance + epsilon)
        for apply, array in scaled:
            apply(y, array, out=y)
        return y

    return step


def _tanh(_layer: Any, own: bool) -> Step:
    return (lambda x: np.tanh(x, out=x)) if own else np.tanh


def _relu(layer: Any, own: bool) -> Step | None:
    zero = np.float32(0)
    if not own:  # in place the input itself would have to change
        return None if layer.inplace else lambda x: np.maximum(x, zero)
    return lambda x: np.maximum(x, zero, out=x)


def _elu(layer: Any, own: bool) -> Step | None:
    alpha = np.float32(layer.alpha)

    def step(x: Array) -> Array:
        below = np.expm1(np.minimum(x, np.float32(0)))
        below *= alpha
        return np.where(x > 0, x, below)

    return None if layer.inplace and not own else step


def _sigmoid(_layer: Any, own: bool) -> Step:
    del own

    def step(x: Array) -> Array:
        small = np.exp(-np.abs(x))  # of either sign without overflow
        found: Array = np.where(x >= 0, np.float32(1), small) / (1 + small)
        return found

    return step


def _identity(_layer: Any, own: bool) -> Step:
    del own
    return lambda x: x


def _lstm(layer: Any, own: bool) -> Step | None:
    """A step of LSTM for rows (B, n) and of states (B, 2, layers, H), which are h and c."""
    del own
    size = layer.hidden_size

    def step(x: Array, before: Array, after: Array, weights: tuple[Array, ...]) -> Array:
        inputs, hidden, bias, more = weights
        gates = np.dot(x, inputs)
        gates += np.dot(before[:, 0], hidden)
        gates += bias
        gates += more
        candidate = np.tanh(gates[:, 2 * size : 3 * size])
        _squashed(gates)
        c = np.multiply(gates[:, size : 2 * size], before[:, 1], out=after[:, 1])
        c += gates[:, :size] * candidate
        y: Array = np.tanh(c)
        y *= gates[:, 3 * size :]
        after[:, 0] = y
        return y

    return _by_layers(layer, step)


def _gru(layer: Any, own: bool) -> Step | None:
    """A step of GRU for rows (B, n) and of states (B, 1, layers, H)."""
    del own
    size = layer.hidden_size

    def step(x: Array, before: Array, after: Array, weights: tuple[Array, ...]) -> Array:
        inputs, hidden, bias, more = weights
        h, shown = before[:, 0], np.dot(x, inputs)
        shown += bias
        remembered = np.dot(h, hidden)
        remembered += more
        gates = _squashed(shown[:, : 2 * size] + remembered[:, : 2 * size])
        y: Array = gates[:, :size] * remembered[:, 2 * size :]
        y += shown[:, 2 * size :]
        np.tanh(y, out=y)
        y += gates[:, size:] * (h - y)
        after[:, 0] = y
        return y

    return _by_layers(layer, step)


def _by_layers(layer: Any, step: Callable[..., Array]) -> Step | None:
    """Return the step of a recurrent layer of torch's, given that of each of its own layers.

    That takes inputs (B, n), states before and after (B, k, H), the latter to be written, and weights.
    """
    weights = _weights_of(layer)
    if weights is None:
        return None

    def through(given: Any) -> Any:
        if not isinstance(given, tuple) or given[0].ndim != 2 or given[0].shape[-1] != layer.input_size:
            return None
        x, states = given
        after = np.empty_like(states)
        for number, each in enumerate(weights):
            x = step(x, states[:, :, number], after[:, :, number], each)
        return x, after

    return through


def _weights_of(layer: Any) -> list[tuple[Array, ...]] | None:
    """Weights of inputs and of states, transposed, and both biases, of each layer; None: they are no plain ones."""
    found = list[tuple[Array, ...]]()
    for number in range(layer.num_layers):
        names = (f"weight_ih_l{number}", f"weight_hh_l{number}", f"bias_ih_l{number}", f"bias_hh_l{number}")
        arrays = [memory(getattr(layer, name)) for name in names]
        if any(array is None for array in arrays):
            return None
        found.append(tuple(array.T for array in arrays if array is not None))
    return found


def _squashed(x: Array) -> Array:
    """The logistic function of numbers, in place; by tanh, which never overflows."""
    x *= _HALF
    np.tanh(x, out=x)
    x += np.float32(1)
    x *= _HALF
    return x


def _flatten(_layer: Any, own: bool) -> Step:
    del own
    return lambda x: x.reshape(len(x), math.prod(x.shape[1:])) if x.ndim > 1 else None


@dataclass(frozen=True)
class Kind:
    """The way in which numpy evaluates layers of one type.

    Args:
        made: makes the step of a layer; None: its parts do it one after the other.
        parameters: how many it has, those included that are None; -1: `fits` counts them.
        is_new: whether its output is never its input's memory.
        options: attributes that its step depends on.
        fits: whether a layer's options are known ones.
    """

    made: Callable[[Any, bool], Step | None] | None
    parameters: int = 0
    is_new: bool = True
    options: tuple[str, ...] = ()
    fits: Callable[[Any], bool] | None = None


KINDS: dict[type[nn.Module], Kind] = {
    nn.Sequential: Kind(None),
    nn.Linear: Kind(_linear, parameters=2),
    NoisyLinear: Kind(_noisy, parameters=4),
    nn.LayerNorm: Kind(
        *(_layer_norm, 2),
        options=("eps", "normalized_shape"),
        fits=lambda layer: len(layer.normalized_shape) == 1 and layer.normalized_shape[0] > 0,
    ),
    nn.Tanh: Kind(_tanh),
    nn.ReLU: Kind(_relu, options=("inplace",)),
    nn.ELU: Kind(_elu, options=("alpha", "inplace"), fits=lambda layer: type(layer.alpha) in (int, float)),
    nn.Sigmoid: Kind(_sigmoid),
    nn.Identity: Kind(_identity, is_new=False),
    nn.Flatten: Kind(
        *(_flatten, 0),
        is_new=False,
        options=("start_dim", "end_dim"),
        fits=lambda layer: (layer.start_dim, layer.end_dim) == (1, -1),
    ),
}
_OF_CELLS = ("bias", "batch_first", "bidirectional", "proj_size", "num_layers", "input_size", "hidden_size", "mode")


def _is_plain_cell(layer: Any) -> bool:
    plain = layer.bias and not (layer.batch_first or layer.bidirectional or layer.proj_size)
    return bool(plain and len(layer._parameters) == 4 * layer.num_layers)


KINDS |= {
    nn.LSTM: Kind(_lstm, parameters=-1, options=_OF_CELLS, fits=_is_plain_cell),
    nn.GRU: Kind(_gru, parameters=-1, options=_OF_CELLS, fits=_is_plain_cell),
}
_HALF = np.float32(0.5)
_TORCHS_OWN: dict[type, tuple[Any, Any]] = {kind: (kind.forward, kind.__call__) for kind in KINDS}
_FLOAT32 = np.dtype(np.float32)  # the one object that all arrays of this type have


class Settling:
    """Layers that take arrays: numpy's steps are examined at each call, or settled for a while."""

    precision = "float32"

    def _examined(self) -> Steps | None:
        """Return what numpy does as the layers are now; None: torch evaluates them."""
        known: Any = self.__dict__.get("_views")
        if known is None or not known.hold():
            vars(self).setdefault("_views", None)  # attributes are counted with this one
            known = self.__dict__["_views"] = Steps(self, exact=True)
        return known if known.steps is not None and self.precision == "float32" and not is_heard() else None

    def settle(self) -> None:
        """Take layers and hooks to stay as they are now, until `unsettle`; weights are read at each call."""
        if (known := self._examined()) is not None:
            known.is_settled = True

    def unsettle(self) -> None:
        """Examine layers and hooks at each call."""
        if (known := self.__dict__.get("_views")) is not None:
            known.is_settled = False
            if known.is_of_several:
                self.__dict__["_views"] = None


def in_turn(kind: type[nn.Module]) -> type[nn.Module]:
    """A class whose modules do one layer after the other, as `nn.Sequential` does; a decorator."""
    vars_of: Any = kind
    vars_of.ways = kind.forward, kind.__call__
    return kind


def _kind_of(layer: Any, *, is_placed: bool = False) -> Kind | None:
    """Return how a layer is evaluated; None: its type is not known, or something was attached to it or to its type.

    Args:
        layer: any module.
        is_placed: torch calls it, and its `forward` asks numpy.
    """
    type_, own = type(layer), vars(layer)
    kind = KINDS[nn.Sequential] if "ways" in vars(type_) else KINDS.get(type_)
    hidden = (*_CALLS, "weight", "bias")  # attributes that hide torch's own
    hooks = _HOOKS_OF_ALL_KINDS
    if (
        kind is None
        or (
            not is_placed
            and (any(name in own for name in hidden if name not in kind.options) or any(own[name] for name in hooks))
        )
        or (kind.parameters >= 0 and len(own["_parameters"]) != kind.parameters)
        or own["_buffers"]
        or vars(type_).get("ways", _TORCHS_OWN.get(type_)) != (type_.forward, type_.__call__)
        or (kind.fits is not None and not kind.fits(layer))
    ):
        return None
    return kind
