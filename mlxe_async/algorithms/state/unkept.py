"""Changes of a learner's object that no state holds: a run that goes on, or a successor, begins without them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from mlxe_async.algorithms.state import inside, snapshot
from mlxe_async.algorithms.state.drawing import NAME
from mlxe_async.algorithms.state.namespaces import Namespaces, is_own


class Unkept:
    """Compares what an author's object holds beside its state with what it held at first.

    Args:
        algorithm: the learner's, before its first update.
        namespaces: what its author's modules hold then.
    """

    def __init__(self, algorithm: Any, namespaces: Namespaces) -> None:
        self._algorithm, self._namespaces = algorithm, namespaces
        forgotten(algorithm)  # which arrays there are at first is what is kept
        self._first = self._digests()
        self._told: set[str] = set()

    def news(self) -> list[str]:
        """Names of what is not kept and has changed, each once, such as `net.gain` or `my_file.SCALE`.

        Of a class that is not derived from `Algorithm` there are none: it keeps what it keeps by itself.
        """
        if not _is_kept_by_us(self._algorithm):
            return []
        names = [*forgotten(self._algorithm), *inside.odd_ways(self._first, self._digests())]
        shown = {_root(name): name for name in reversed(names)} | {name: name for name in self._namespaces.changed()}
        new = {key: name for key, name in shown.items() if key not in self._told}
        self._told |= new.keys()
        return sorted(new.values())

    def _digests(self) -> dict[str, Any]:
        if not is_own(type(self._algorithm)):
            return {}
        parts, names = kept_parts(self._algorithm), set[str]()
        (walk := snapshot.Walk(lambda name, _take, _put: names.add(name))).through(parts)
        found = inside.digests(parts, lambda value: id(value) in walk.seen or _is_kept_whole(value))
        return {way: one for way, one in found.items() if way not in names}


def forgotten(algorithm: Any) -> list[str]:
    """Attributes that a learner's object has and no state can hold, such as `history (deque)`."""
    found: list[str] = algorithm._modules.forgotten if _is_kept_by_us(algorithm) else []
    return found


def _is_kept_by_us(algorithm: Any) -> bool:
    from mlxe_async.algorithms.interface import Algorithm

    return isinstance(algorithm, Algorithm)


def kept_parts(algorithm: Any) -> dict[str, Any]:
    """The attributes of an author's object that `snapshot` keeps."""
    from mlxe_async.algorithms.state.modules import FACTS

    return {name: one for name, one in vars(algorithm).items() if name not in FACTS | {NAME}}


def _is_kept_whole(value: Any) -> bool:
    """Return whether a state holds all of it: what has a state of its own, and generators."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return False
    if isinstance(value, np.random.Generator) or (torch is not None and isinstance(value, torch.Generator)):
        return True
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _root(name: str) -> str:
    return name.partition(" ")[0].partition(".")[0]
