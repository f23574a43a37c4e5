"""Whether the functions of Python, numpy and torch that the built-in files mention are those libraries' own."""

from __future__ import annotations

import builtins
import copy
import functools
import math
import operator
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ALIASES = {"abs", "bool_", "double", "long", "error", "__call__", "forward", "__init__", "__setstate__"}
"""Names under which a library itself has a function of another name."""
OF_PYTHON = ("builtins", "types", "typing", "collections", "_io")
STDLIB = Path(sysconfig.get_path("stdlib"))


class Libraries:
    """Looks at the functions that some names mean in the libraries, again and again.

    Args:
        names: that are mentioned.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._seen: list[tuple[Any, int, Callable[[Any], Any], Any]] = []

    def replaced(self) -> str:
        """The place of the first function that is not its library's own; "" if there is none."""
        if self._seen and all(map(_is_as_before, self._seen)):
            return ""
        self._seen = []
        for place, owner in _spaces():
            space = vars(owner)
            names = sorted(self._names & space.keys())
            for name in names:
                if not _is_own(name, space[name], place.partition(".")[0]):
                    return f"{place}.{name}"
            look = operator.itemgetter(*names)
            self._seen.append((space, len(space), look, look(space)))
        return ""


def _is_as_before(seen: tuple[Any, int, Callable[[Any], Any], Any]) -> bool:
    space, size, look, found = seen
    try:
        return len(space) == size and all(map(operator.is_, look(space), found))
    except KeyError:
        return False


def unusual() -> str:
    """Return what torch was told to do otherwise for the whole process, in words; "" if nothing."""
    import torch

    if torch.get_default_dtype() is not torch.float32:
        return f"torch's default type is {torch.get_default_dtype()}"
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return "torch's gradients are switched off"
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "torch's functions are overridden by a mode"
    return ""


def _spaces() -> Iterator[tuple[str, Any]]:
    import torch
    from torch import nn
    from torch.nn import functional

    yield from (("builtins", builtins), ("math", math), ("copy", copy), ("functools", functools))
    yield from (("numpy", np), ("numpy.random", np.random), ("numpy.linalg", np.linalg))
    yield from (("torch", torch), ("torch.Tensor", torch.Tensor), ("torch.autograd", torch.autograd))
    yield from (("torch.nn", nn), ("torch.nn.Module", nn.Module), ("torch.nn.Parameter", nn.Parameter))
    yield "torch.nn.functional", functional
    if radam := sys.modules.get("torch.optim.radam"):
        yield "torch.optim.radam", radam


def _is_own(name: str, one: Any, library: str) -> bool:
    if not callable(one) or isinstance(one, types.ModuleType):
        return not isinstance(one, property | classmethod | staticmethod) or _is_own_part(one, library)
    if getattr(one, "__name__", name) != name and name not in ALIASES:
        return False
    if isinstance(one, types.MethodType):
        return _is_own(name, one.__func__, library)
    if isinstance(one, types.FunctionType):
        return _lies_in(one.__code__.co_filename, library)
    home = (one if isinstance(one, type) else type(one)).__module__.partition(".")[0]
    return home in (library, *OF_PYTHON) or home.startswith("_cython")


def _is_own_part(one: Any, library: str) -> bool:
    parts = [one.fget, one.fset, one.fdel] if isinstance(one, property) else [one.__func__]
    codes = [part.__code__ for part in parts if isinstance(part, types.FunctionType)]
    return all(_lies_in(code.co_filename, library) for code in codes)


def _lies_in(file: str, library: str) -> bool:
    """Return whether a file is part of a library, or of Python itself, by which some of torch's functions are made."""
    return _lies_under(file, getattr(sys.modules[library], "__file__", None))


@functools.cache
def _lies_under(file: str, home: str | None) -> bool:
    path = Path(file)
    of_python = path.is_relative_to(STDLIB) and not {"site-packages", "dist-packages"} & {*path.parts}
    return file.startswith("<frozen") or of_python or (home is not None and path.is_relative_to(Path(home).parent))
