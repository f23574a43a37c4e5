"""By which way recurrent cells go through sequences in this thread, numpy's or torch's, and who compares the two."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Way = Callable[[Any, Any], tuple[Any, Any]]
"""Features (N, n) and states (B, S) before the first row, as tensors -> outputs and the states that are asked for."""
Watcher = Callable[[Way, Way, Sequence[Any], Any, Any], None]
"""Called with numpy's way, torch's, the weights of both, features and states; before numpy's is gone."""


class _Here(threading.local):
    """The choice of this thread."""

    def __init__(self) -> None:
        self.is_torchs = False
        self.watcher: Watcher | None = None


_HERE = _Here()


@contextlib.contextmanager
def by_torch() -> Iterator[None]:
    """Let torch go through all sequences, as cells are written."""
    before, _HERE.is_torchs = _HERE.is_torchs, True
    try:
        yield
    finally:
        _HERE.is_torchs = before


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Show each of numpy's ways through sequences to a watcher."""
    before, _HERE.watcher = _HERE.watcher, watcher
    try:
        yield
    finally:
        _HERE.watcher = before


def is_torchs() -> bool:
    """Return whether torch is to go through all sequences."""
    return _HERE.is_torchs


def watcher() -> Watcher | None:
    """Return who watches, if anybody does."""
    return _HERE.watcher
