"""The tensors that a torch module holds, looked for once: walking through modules takes longer than copying a network.

Nothing here imports torch.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator
from itertools import chain
from typing import Any

_KINDS = ("_parameters", "_buffers", "_modules")
_KNOWN: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()
"Modules that are still there -> what was found of each."


def tensors_of(module: Any) -> list[tuple[str, Any]]:
    """Name and tensor of each parameter of a module, then of each buffer, as it is now; not to be changed."""
    known = _KNOWN.get(module)
    if known is None or not known.holds():
        known = _KNOWN[module] = _Held(module)
    return known.tensors


class _Held:
    """Everything that a module and those within it held, and the tensors among it."""

    def __init__(self, module: Any) -> None:
        self._held = [vars(one)[kind] for one in module.modules() for kind in _KINDS]
        self._values = [*self._now()]
        self.tensors = [*module.named_parameters(), *module.named_buffers()]

    def _now(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._held))

    def holds(self) -> bool:
        """Return whether all is as it was: each module has the same tensors and modules, in the same places."""
        now = [*self._now()]
        return len(now) == len(self._values) and all(map(operator.is_, now, self._values))
