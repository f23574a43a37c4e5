"""Plain `nn.Sequential` networks of an author, evaluated by numpy while executors act.

What a network is made of decides whether numpy evaluates it, see `by_numpy`, at each call anew: every layer is of a
known type itself, holds float32 in main memory, and has no hook or override. Torch evaluates everything else, and
everything outside of inference mode. Weights are read where torch has them.

A network is given an attribute `forward`, and nothing else: its type, parameters and hooks stay torch's own.
"""

from __future__ import annotations

import contextvars
import functools
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as hooks_of_all

from mlxe_async.networks import by_numpy
from mlxe_async.networks.by_numpy import Steps
from mlxe_async.networks.dense import Dense

Known = dict[nn.Module, Steps]
MOST_KNOWN = 1000
_MARK = "is_of_numpy"  # attribute of the functions made here


def numpy_of(module: nn.Module) -> Callable[..., Any] | None:
    """A `forward` for a module: by numpy wherever that makes no difference, else its type's own.

    Returns:
        a method, bound to the module; None: the module is no plain network, or has no linear layer.
    """
    if None in _FOUND or not any(type(layer) is nn.Linear for layer in module.modules()):
        return None
    if Steps(module, exact=True).steps is None:
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
    x = by_numpy.memory(given) if _is_plain_call() else None
    if x is None or x.ndim == 0:
        return None
    steps = known.get(module)
    if steps is None or not steps.hold():
        if len(known) >= MOST_KNOWN:  # networks that are no longer there would stay
            known.clear()
        steps = known[module] = Steps(module, watched=False, exact=True)
    found = steps.through(x) if steps.steps is not None and steps.is_new else None
    return None if found is None else torch.from_numpy(found)


def _is_plain_call() -> bool:
    """Return whether torch neither differentiates, traces, transforms nor calls hooks: then only the numbers count."""
    return (
        torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled("cpu")
        and _traced() is None
        and _listening() == 0
        and _overriding() == 0
        and _transforming() is None
        and not by_numpy.is_heard()
        and not hooks_of_all._global_backward_hooks
        and not hooks_of_all._global_backward_pre_hooks
    )


class _Quiet(threading.local):
    """Each thread's own context in which numpy, like torch, tells of no overflow: entering costs less than errstate."""

    def __init__(self) -> None:
        self.run = contextvars.copy_context().run
        self.run(np.seterr, all="ignore")


_QUIET = _Quiet()
_INTERNAL: Any = torch._C
_NAMES = (
    *("_get_tracing_state", "_functorch.peek_interpreter_stack"),
    *("_len_torch_dispatch_stack", "_len_torch_function_stack"),
)
"""Torch's own names for what goes on; where one is missing this cannot be told, and torch evaluates everything."""


def _named(name: str) -> Any:
    return functools.reduce(lambda found, part: getattr(found, part, None), name.split("."), _INTERNAL)


_traced, _transforming, _listening, _overriding = _FOUND = [_named(name) for name in _NAMES]
