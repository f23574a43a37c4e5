"""A loop to run in, a nursery, and supervised processes with a listener that remembers."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
import uvloop

from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process, ProcessListener
from mlxe_async.ipc.processes.restarts import RestartPolicy
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage

HERE = str(Path(__file__).parent)
LIMIT_S = 120.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_on(loop, main):
    """Run the coroutine function `main` on a fresh loop of this kind."""

    async def bounded():
        async with asyncio.timeout(LIMIT_S):
            return await main()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(bounded())


@pytest.fixture
def run():
    return lambda main: run_on("uvloop", main)


@pytest.fixture(params=list(LOOPS))
def run_both(request):
    return lambda main: run_on(request.param, main)


class Recorder(ProcessListener):
    """Remembers what it is told, and lets a test wait for it."""

    def __init__(self):
        self.told = []
        self._news = asyncio.Event()

    def _note(self, what, *facts):
        self.told.append((what, *facts))
        self._news.set()

    def started(self, process, pid, seconds):
        self._note("started", pid)

    def exited(self, process, sentence, status, expected):
        self._note("exited", sentence, status, expected)

    def restarting(self, process, delay_s, attempt):
        self._note("restarting", delay_s, attempt)

    def hang(self, process, hang):
        self._note("hang", hang)

    def hang_stack(self, process, stack):
        self._note("hang_stack", stack)

    def notice(self, process, message):
        self._note("notice", message)

    def all(self, what):
        return [entry[1:] for entry in self.told if entry[0] == what]

    async def saw(self, what, times=1):
        """Wait until `what` has been told this often; returns what was told the last time."""
        while len(self.all(what)) < times:
            self._news.clear()
            await self._news.wait()
        return self.all(what)[times - 1]


class WatchedPage(ProgressPage):
    """Lets a test wait until the judge has looked."""

    def __init__(self, buffer):
        super().__init__(buffer)
        self._looks = 0
        self._looked = asyncio.Event()

    def overdue(self, now_ns):
        self._looks += 1
        self._looked.set()
        return super().overdue(now_ns)

    async def looked(self, times):
        goal = self._looks + times
        while self._looks < goal:
            self._looked.clear()
            await self._looked.wait()


class House:
    """A nursery and the processes made in one test."""

    def __init__(self):
        self.nursery_exits = []
        self.nursery_starts = []
        self.nursery = Nursery(
            on_started=lambda *facts: self.nursery_starts.append(facts),
            on_exited=lambda *facts: self.nursery_exits.append(facts),
        )
        self._stack = contextlib.AsyncExitStack()

    async def process(self, entry="echo", name="mlxe-exe-0", *, watched=True, started=True, spec=None, **more):
        """A process with its recorder as `.heard`, its page as `.page` and its running watcher as `.watcher`."""
        segment = self._stack.enter_context(Segment.create("page", PAGE_BYTES))
        page = WatchedPage(segment.buffer)
        recorder = Recorder()
        process = Process(
            lambda: self.nursery,
            name,
            f"entries:{entry}",
            lambda epoch: {"epoch": epoch, **(spec or {})},
            lambda: {"page": segment.fd},
            page,
            more.pop("policy", RestartPolicy(backoff_s=0.01)),
            recorder,
            more.pop("before_start", None),
            **more,
        )
        process.heard, process.page = recorder, page
        self._stack.push_async_callback(process.stop, 0.2)
        if started:
            await process.start()
        if watched:
            process.watcher = asyncio.create_task(process.run())
            self._stack.push_async_callback(_ended, process.watcher)
        return process

    async def close(self):
        try:
            await self._stack.aclose()
        finally:
            await self.nursery.stop()


async def _ended(task):
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        # What a watcher raised is asked for by the tests that expect it.
        task.exception()


@contextlib.asynccontextmanager
async def house(preload=(), **more):
    made = House()
    try:
        await made.nursery.start(preload, [HERE], **more)
        yield made
    finally:
        await made.close()
