"""Plain `nn.Sequential` networks evaluated by numpy: for a few observations, torch's calls cost more than the sums.

What a network is made of decides whether numpy evaluates it, at each call anew: every layer is of a type in `_KINDS`
itself, holds float32 in main memory, and has no hook or override. Torch evaluates everything else, and everything
outside of inference mode. Weights are read where torch has them.

A network is given an attribute `forward`, and nothing else: its type, parameters and hooks stay torch's own.
"""

from __future__ import annotations

import contextvars
import functools
import math
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as hooks_of_all

from mlxe_async.networks.dense import Dense
from mlxe_async.rows import Array

Known = dict[Any, tuple[Any, ...]]
"""Linear layer -> its parameters, where their numbers were at the last call, and views of these."""
MOST_KNOWN = 1000
_MARK = "is_of_numpy"  # attribute of the functions made here


def numpy_of(module: nn.Module) -> Callable[..., Any] | None:
    """A `forward` for a module: by numpy wherever that makes no difference, else its type's own.

    Returns:
        a method, bound to the module; None: the module is no plain network, or has no linear layer.
    """
    if None in _FOUND:
        return None
    layers = [*module.modules()]
    with torch.inference_mode():
        is_plain = all(_kind_of(layer) is not None for layer in layers) and all(
            _memory(parameter) is not None for parameter in module.parameters()
        )
    if not is_plain or not any(type(layer) is nn.Linear for layer in layers):
        return None
    known: Known = {}

    @functools.wraps(type(module).forward)  # exporters and compilers look at signature and source
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling() and len(args) == 1 and not named:
            found = _QUIET.run(_evaluated, self, args[0], known)
            if found is not None:
                return found
        return type(self).forward(self, *args, **named)

    vars(forward)[_MARK] = True
    return types.MethodType(forward, module)  # which a copy of the module has for its own


def act_by_numpy(modules: Iterable[nn.Module]) -> None:
    """Have the plain networks among an executor's modules, and within them, evaluated by numpy while it acts."""
    for module in modules:
        for part, forward in _within(module):
            vars(part)["forward"] = forward


def act_by_torch(modules: Iterable[nn.Module]) -> None:
    """Undo that."""
    for part in (part for module in modules for part in module.modules()):
        if hasattr(vars(part).get("forward"), _MARK):
            del vars(part)["forward"]


def _within(module: nn.Module) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    """The outermost plain networks of several layers, and a `forward` for each."""
    forward = numpy_of(module) if type(module) in (nn.Sequential, Dense) else None
    if forward is not None:
        yield module, forward
        return
    for child in module.children():
        yield from _within(child)


def _evaluated(module: nn.Module, given: Any, known: Known) -> torch.Tensor | None:
    """Output (..., outputs) for an input (..., inputs); None: torch is to say what becomes of it."""
    if not _is_plain_call():
        return None
    x = _memory(given)
    if x is None or x.ndim == 0:
        return None
    if type(module) in (nn.Sequential, Dense):  # which torch calls itself, with its hooks
        if nn.Sequential.forward is not _TORCHS_OWN[nn.Sequential]:
            return None
        found = _through(module._modules.values(), x, False, known)
    else:
        found = _through((module,), x, False, known)
    return torch.from_numpy(found[0]) if found is not None and found[1] else None


def _through(layers: Iterable[Any], x: Array, own: bool, known: Known) -> tuple[Array, bool] | None:
    """Output of some layers, and whether its memory is not their input's; `own` says that of the input."""
    for layer in layers:
        kind = _kind_of(layer)
        if kind is None:
            return None
        if kind.step is None:
            within = _through(layer._modules.values(), x, own, known)
            if within is None:
                return None
            x, own = within
            continue
        y = kind.step(layer, x, own, known)
        if y is None:
            return None
        x, own = y, own or kind.is_new
    return x, own


def _is_plain_call() -> bool:
    """Whether nobody differentiates, traces, transforms or listens: then a call is no more than its numbers."""
    return (
        torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled("cpu")
        and _traced() is None
        and _listening() == 0
        and _overriding() == 0
        and _transforming() is None
        and not hooks_of_all._global_forward_hooks
        and not hooks_of_all._global_forward_pre_hooks
        and not hooks_of_all._global_backward_hooks
        and not hooks_of_all._global_backward_pre_hooks
    )


def _memory(tensor: Any) -> Array | None:
    """A tensor's own memory; None: it is not plain float32 in main memory."""
    if type(tensor) is not torch.Tensor and type(tensor) is not nn.Parameter:
        return None
    try:
        array: Array = tensor.numpy()
    except (RuntimeError, TypeError):  # torch's own word for: it is on a device, sparse, negated, of no numpy type
        return None
    return array if array.dtype is _FLOAT32 else None


class _Quiet(threading.local):
    """Each thread's own context in which numpy, like torch, tells of no overflow: entering costs less than errstate."""

    def __init__(self) -> None:
        self.run = contextvars.copy_context().run
        self.run(np.seterr, all="ignore")


_QUIET = _Quiet()


# -- layers: input (..., n), and whether it may be overwritten -> output; None: torch is to say what becomes of it --


def _linear(layer: Any, x: Array, own: bool, known: Known) -> Array | None:
    del own
    parameters = layer._parameters
    if "weight" not in parameters or "bias" not in parameters:
        return None
    weight, bias = parameters["weight"], parameters["bias"]
    there = known.get(layer)
    if (
        there is None
        or there[0] is not weight
        or there[1] is not bias
        or there[2] != _place(weight)
        or (bias is not None and there[3] != _place(bias))
    ):
        arrays = _dense(weight, bias)
        if arrays is None:
            return None
        if len(known) >= MOST_KNOWN:  # layers that are no longer there would stay
            known.clear()
        there = known[layer] = (weight, bias, _place(weight), _place(bias), *arrays)
    array, offset = there[4], there[5]
    if x.shape[-1] != len(array):
        return None
    y = np.dot(x if x.ndim < 3 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), array)
    if offset is not None:
        y += offset
    found: Array = y if x.ndim < 3 else y.reshape(*x.shape[:-1], array.shape[1])
    return found


def _place(tensor: Any) -> Any:
    """What tells where a tensor's numbers are: as long as it stays the same, so do views of them."""
    return tensor is not None and (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _dense(weight: Any, bias: Any) -> tuple[Array, Array | None] | None:
    """Views of a layer's weights (inputs, outputs) and bias (outputs,); None: they are no plain ones."""
    array = _memory(weight)
    if array is None or array.ndim != 2:
        return None
    if bias is None:
        return array.T, None
    offset = _memory(bias)
    return (array.T, offset) if offset is not None and offset.shape == (len(array),) else None


def _layer_norm(layer: Any, x: Array, own: bool, known: Known) -> Array | None:
    del own, known
    size, parameters = layer.normalized_shape[0], layer._parameters
    if x.shape[-1] != size or size == 0:
        return None
    y = x - np.add.reduce(x, -1, keepdims=True) / np.float32(size)
    variance = np.add.reduce(np.square(y), -1, keepdims=True) / np.float32(size)
    y /= np.sqrt(variance + np.float32(layer.eps))
    for name, apply in (("weight", np.multiply), ("bias", np.add)):
        if name not in parameters:
            return None
        if parameters[name] is not None:
            array = _memory(parameters[name])
            if array is None or array.shape != (size,):
                return None
            apply(y, array, out=y)
    return y


def _tanh(layer: Any, x: Array, own: bool, known: Known) -> Array:
    del layer, known
    return np.tanh(x, out=x if own else None)


def _relu(layer: Any, x: Array, own: bool, known: Known) -> Array | None:
    del known
    if layer.inplace and not own:
        return None  # the input itself is to change
    return np.maximum(x, np.float32(0), out=x if own else None)


def _elu(layer: Any, x: Array, own: bool, known: Known) -> Array | None:
    del known
    if layer.inplace and not own:
        return None
    below = np.expm1(np.minimum(x, np.float32(0)))
    below *= np.float32(layer.alpha)
    return np.where(x > 0, x, below)


def _sigmoid(layer: Any, x: Array, own: bool, known: Known) -> Array:
    del layer, own, known
    small = np.exp(-np.abs(x))  # of either sign without overflow
    found: Array = np.where(x >= 0, np.float32(1), small) / (1 + small)
    return found


def _identity(layer: Any, x: Array, own: bool, known: Known) -> Array:
    del layer, own, known
    return x


def _flatten(layer: Any, x: Array, own: bool, known: Known) -> Array | None:
    del layer, own, known
    return x.reshape(len(x), math.prod(x.shape[1:])) if x.ndim > 1 else None


@dataclass(frozen=True)
class _Kind:
    """How numpy evaluates layers of one type.

    Args:
        step: what it does; None: its parts do it one after the other.
        parameters: how many it has, those included that are None.
        is_new: whether its output is never its input's memory.
        fits: whether a layer's options are known ones.
    """

    step: Callable[[Any, Array, bool, Known], Array | None] | None
    parameters: int = 0
    is_new: bool = True
    fits: Callable[[Any], bool] | None = None


_KINDS: dict[type[nn.Module], _Kind] = {
    nn.Sequential: _Kind(None),
    Dense: _Kind(None),
    nn.Linear: _Kind(_linear, parameters=2),
    nn.LayerNorm: _Kind(_layer_norm, parameters=2, fits=lambda layer: len(layer.normalized_shape) == 1),
    nn.Tanh: _Kind(_tanh),
    nn.ReLU: _Kind(_relu),
    nn.ELU: _Kind(_elu, fits=lambda layer: type(layer.alpha) in (int, float)),
    nn.Sigmoid: _Kind(_sigmoid),
    nn.Identity: _Kind(_identity, is_new=False),
    nn.Flatten: _Kind(_flatten, is_new=False, fits=lambda layer: (layer.start_dim, layer.end_dim) == (1, -1)),
}
_TORCHS_OWN: dict[type, Any] = {kind: kind.forward for kind in _KINDS}
_CALLS: dict[type, Any] = {kind: kind.__call__ for kind in _KINDS}
_FLOAT32 = np.dtype(np.float32)  # the one object that all arrays of this type have
_INTERNAL: Any = torch._C
_NAMES = (
    *("_get_tracing_state", "_functorch.peek_interpreter_stack"),
    *("_len_torch_dispatch_stack", "_len_torch_function_stack"),
)
"""Torch's own names for what goes on; where one is missing nobody can tell, and torch evaluates everything."""


def _named(name: str) -> Any:
    return functools.reduce(lambda found, part: getattr(found, part, None), name.split("."), _INTERNAL)


_traced, _transforming, _listening, _overriding = _FOUND = [_named(name) for name in _NAMES]


def _kind_of(layer: Any) -> _Kind | None:
    """How a layer is evaluated; None: its type is not known, or something was attached to it or to its type."""
    type_ = type(layer)
    kind = _KINDS.get(type_)
    if kind is None:
        return None
    own = layer.__dict__
    if (
        "forward" in own
        or "_call_impl" in own
        or "_compiled_call_impl" in own
        or "weight" in own  # an attribute that hides the parameter
        or "bias" in own
        or own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or len(own["_parameters"]) != kind.parameters
        or own["_buffers"]
        or type_.forward is not _TORCHS_OWN[type_]
        or type_.__call__ is not _CALLS[type_]
        or (kind.fits is not None and not kind.fits(layer))
    ):
        return None
    return kind
