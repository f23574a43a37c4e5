"""Small helpers around asyncio: ticking, waiting to the end, the error that matters of a group."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

from mlxe_async.errors import MlxeError
from mlxe_async.ticks import TICK_S, nearest_tick


async def every(seconds: float) -> AsyncIterator[None]:
    """Tick for ever, about `seconds` apart: together with all else that ticks, see `ticks`."""
    loop = asyncio.get_running_loop()
    while True:
        now = loop.time()
        await asyncio.sleep(seconds if seconds < TICK_S else nearest_tick(now + seconds) - now)
        yield


async def to_the_end(work: Awaitable[Any]) -> Any:
    """Await `work` to its end even if this task is cancelled meanwhile; it bounds its own time.

    Raises:
        asyncio.CancelledError: the task was cancelled, and `work` has come to its end without an error.
    """
    found, cancelled = await _ended(work)
    if cancelled is not None:
        raise cancelled
    return found


async def at_the_end(work: Awaitable[Any]) -> Any:
    """The same at the end of a run, where nothing is left that might be cancelled: returns what `work` does."""
    return (await _ended(work))[0]


async def _ended(work: Awaitable[Any]) -> tuple[Any, asyncio.CancelledError | None]:
    """Return the result of `work`, and the cancellation that came meanwhile."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return task.result(), cancelled


async def unless_stopped(work: Awaitable[Any], stop: Awaitable[Any], grace_s: float) -> bool:
    """Await `work`, but for `grace_s` only once `stop` is over; whether it came to its end."""
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait([working], timeout=grace_s)
        if working.done():
            working.result()
            return True
    finally:
        for task in (working, stopped):
            task.cancel()
        await to_the_end(asyncio.wait([working, stopped]))
    if not working.cancelled():
        working.result()  # what it raised instead
    return False


def first_of(error: BaseException) -> BaseException:
    """The error that matters of a group of them: ours before others, whichever came first."""
    leaves = list(_leaves(error))
    ours = [leaf for leaf in leaves if isinstance(leaf, MlxeError)]
    return (ours or leaves)[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def let_go(error: BaseException) -> None:
    """Clear the frames that a cancellation or an error of ours went through, and those of what led to it.

    A caller that keeps the error keeps its traceback, and with it all that was local on the way: shared memory among
    it. The lines stay to be printed. Other errors came from a caller's code, whose frames are not ours to clear.
    """
    known: set[int] = set()
    to_do: list[BaseException | None] = [error]
    while to_do:
        one = to_do.pop()
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        to_do += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            to_do += one.exceptions
        if isinstance(one, asyncio.CancelledError | MlxeError | BaseExceptionGroup):
            traceback.clear_frames(one.__traceback__)


def is_in_loop() -> bool:
    """Return whether a loop runs in this thread; apart, so that no other error has the answer as its context."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
