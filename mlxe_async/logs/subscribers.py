"""Subscribers of a run's log besides the file: callbacks and streams, added before or after the log begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from structlog.typing import Processor

from mlxe_async.logs.journal import Columns, Journal


class Subscribers:
    """The subscribers of one run, from before it has a log until its end."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[Callable[[dict[str, Any]], None], Collection[str] | None, Columns | None]] = []
        self._processors: list[Processor] = []
        self._queues: list[asyncio.Queue[dict[str, Any] | None]] = []
        self._journal: Journal | None = None

    def add(
        self,
        callback: Callable[[dict[str, Any]], None],
        events: Collection[str] | None,
        columns: Columns | None = None,
    ) -> None:
        """Have `callback` called with each line, or with those of some events only; see `Journal.subscribe`."""
        self._callbacks.append((callback, events, columns))
        if self._journal is not None:
            self._journal.subscribe(callback, events, columns)

    def process(self, processor: Processor) -> None:
        """Have a processor called with each line; see `Journal.process`."""
        self._processors.append(processor)
        if self._journal is not None:
            self._journal.process(processor)

    def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Each line from now on; ends with `end`."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.add(queue.put_nowait, None)
        self._queues.append(queue)

        async def lines() -> AsyncIterator[dict[str, Any]]:
            while (line := await queue.get()) is not None:
                yield line

        return lines()

    def attach(self, journal: Journal) -> None:
        """From now on lines come from this log."""
        self._journal = journal
        for processor in self._processors:
            journal.process(processor)
        for callback, events, columns in self._callbacks:
            journal.subscribe(callback, events, columns)

    def end(self) -> None:
        """No line comes any more."""
        for queue in self._queues:
            queue.put_nowait(None)
