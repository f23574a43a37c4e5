"""An event loop whose clock jumps to the next timer: years pass in a second, and a deadlock is seen at once."""

import asyncio
import selectors


class Deadlock(Exception):
    """Everybody waits for somebody."""


class _Jumping(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise Deadlock(f"nothing will ever happen again, at {self.now:g} s")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.now


def in_virtual_time(coroutine):
    """Run a coroutine to its end; returns its result and the virtual seconds it took."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine), loop.time()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
