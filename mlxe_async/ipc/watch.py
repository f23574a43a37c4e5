"""One clock for all who must look again and again: a timer of its own for each child would wake the loop for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WATCH_S = 0.1


class Watch:
    """Calls all who asked for it ten times a second, in the order in which they asked; from the running loop."""

    def __init__(self) -> None:
        self._looks: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, look: Callable[[], None]) -> None:
        """Have `look` called from now on; it must not raise."""
        self._looks[look] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._turn)

    def remove(self, look: Callable[[], None]) -> None:
        """No longer. May be called twice, and by `look` itself."""
        self._looks.pop(look, None)
        if not self._looks and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._turn)
        for look in tuple(self._looks):
            look()
