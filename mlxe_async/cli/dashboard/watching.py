"""Runs that pages look at: each log is read piece by piece while a page has it open, and its page is made anew.

What is made is shared by all readers, so that a hundred of them cost little more than one. A reader has no queue: when
it has taken what it was sent, it gets the newest state.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxe_async.analysis.report.markup import Markup, element
from mlxe_async.cli.dashboard.panels import ON_DEMAND, PANELS
from mlxe_async.cli.dashboard.run_now import RunNow
from mlxe_async.cli.dashboard.thinning import Thinning
from mlxe_async.errors import MlxeError
from mlxe_async.logs.reader import LiveLog
from mlxe_async.storage.run_folder import LOG, is_held

LONGEST_LINE = 2**18
MOST_WATCHED = 8
POLL_S, POLL_ENDED_S = 0.25, 2.0
LEAST_INTERVAL_S, MOST_INTERVAL_S = 1.0, 10.0
MOST_CHARACTERS = 2**21  # of a page: more comes of no run that one would look at
LARGEST_SHARE = 0.0025  # of a core, for making pages
UNSEEN_S = 60.0  # a log that no page looks at is kept for so long
ANEW_S = 5.0  # at least between two beginnings


@dataclass(frozen=True)
class Frame:
    """The parts of a page at one moment.

    Args:
        number: greater than those before it.
        panels: name of each part -> digest of its HTML, and that HTML.
    """

    number: int
    panels: dict[str, tuple[bytes, str]]
    _messages: dict[frozenset[str], bytes] = field(default_factory=dict, repr=False)

    @property
    def digests(self) -> dict[str, bytes]:
        """Digest of each part by its name."""
        return {name: digest for name, (digest, _) in self.panels.items()}

    def changes(self, sent: Mapping[str, bytes], unwanted: Collection[str] = ()) -> bytes:
        """The parts that are others than those sent, as a message of a stream; empty if there are none.

        Readers who lack the same parts get the same bytes: they are made, and held, once.
        """
        lacking = frozenset(
            name for name, digest in self.digests.items() if sent.get(name) != digest and name not in unwanted
        )
        if lacking and lacking not in self._messages:
            data = json.dumps({name: self.panels[name][1] for name in self.panels if name in lacking})
            self._messages[lacking] = f"event: panels\ndata: {data}\n\n".encode()
        return self._messages.get(lacking, b"")


class Frames:
    """The newest frame, made again and again while a reader waits for it.

    Args:
        make: makes the parts that are asked for, by name.
    """

    def __init__(self, make: Callable[[Collection[str]], Awaitable[dict[str, Markup]]]) -> None:
        self.newest = Frame(0, {})
        self.has_changed = True
        self.interval_s = LEAST_INTERVAL_S
        self._make = make
        self._wanted: Counter[str] = Counter()
        self._next, self._asked = asyncio.Event(), asyncio.Event()

    @property
    def readers(self) -> int:
        """The number of readers."""
        return self._wanted[""]

    @contextlib.contextmanager
    def wanting(self, more: Collection[str]) -> Iterator[None]:
        """Count a reader, and what it wants beside the parts that all get."""
        wanted = {"", *more}
        self._wanted.update(wanted)
        self.has_changed = True
        self._asked.set()
        try:
            yield
        finally:
            self._wanted.subtract(wanted)

    async def after(self, number: int, limit_s: float) -> Frame | None:
        """The first frame after one of this number; None if there is none within the limit."""
        if self.newest.number > number:
            return self.newest
        try:
            async with asyncio.timeout(limit_s):
                await self._next.wait()
        except TimeoutError:
            return None
        return self.newest

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until another reader comes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        self._asked.clear()

    async def make(self) -> None:
        """Make a frame of all that is wanted; the pause until the next depends on what that cost."""
        self.has_changed = False
        began = time.thread_time()
        made = await self._make([name for name, many in self._wanted.items() if many > 0 and name])
        room, panels = MOST_CHARACTERS, dict[str, tuple[bytes, str]]()
        for name, html in made.items():
            if len(html) > room:
                html = element("p", f"This is too much to be shown: {len(html):,} characters of HTML.", class_="note")
            room -= len(html)
            panels[name] = _digest(html), str(html)
        self.interval_s = min(MOST_INTERVAL_S, max(LEAST_INTERVAL_S, (time.thread_time() - began) / LARGEST_SHARE))
        self.newest = Frame(self.newest.number + 1, panels)
        self._next.set()
        self._next = asyncio.Event()


class Watched:
    """One run that pages look at.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = RunNow(path.name)
        self.frames = Frames(self._panels)
        self.is_read = False  # up to its present end
        self.failure = ""
        self.seen_at = time.monotonic()
        self._thinning = Thinning()
        self._log = LiveLog(path / LOG, LONGEST_LINE, self._thinning)
        self._began_at = time.monotonic()
        self._made_at = self._asked_at = float("-inf")

    async def keep(self) -> None:
        """Read on and make frames, until cancelled; a failure is told on the page."""
        try:
            while True:
                await self._step()
        except Exception as error:  # noqa: BLE001 - of one run: it is told on its page, and the others go on
            if not isinstance(error, MlxeError | OSError):
                sys.stderr.write(traceback.format_exc())
            self.failure = f"{type(error).__name__}: {error}"
            await self.frames.make()
        finally:
            self._log.close()

    async def catch_up(self, until: float) -> None:
        """Read what there is, but to a moment of the monotonic clock at most, and make a last frame of it."""
        has_more = not self.failure
        while has_more and time.monotonic() < until:
            has_more = self._read() is not None
            await asyncio.sleep(0)
        if self.frames.readers:
            self.run.is_held = is_held(self.path)
            await self.frames.make()

    def _read(self) -> list[dict[str, Any]] | None:
        lines = self._log.more()
        for line in lines or ():
            self.run.feed(line)
        self.run.leave_out(self._thinning.taken())
        return lines

    async def _step(self) -> None:
        lines = self._read()
        if self._log.is_stale and time.monotonic() - self._began_at > ANEW_S:
            self._begin_anew()
        now = time.monotonic()
        if lines is None:
            self._ask(now)
        self.is_read |= lines is None
        self.frames.has_changed |= bool(lines)
        is_due = now - self._made_at >= self.frames.interval_s
        if self.frames.readers:
            self.seen_at = now
            if is_due and (self.frames.has_changed or not self.is_read):
                await self.frames.make()
                self._made_at = time.monotonic()
        if lines is None:
            has_gone_on = self.run.is_held is not False
            await self.frames.pause(POLL_S if has_gone_on or self.frames.has_changed else POLL_ENDED_S)
        else:
            await asyncio.sleep(0)

    def _ask(self, now: float) -> None:
        """Ask, once a second, whether the run is alive."""
        if now - self._asked_at < LEAST_INTERVAL_S:
            return
        self._asked_at = now
        held = is_held(self.path)
        self.frames.has_changed |= held != self.run.is_held
        self.run.is_held = held

    def _begin_anew(self) -> None:
        self._log.close()
        self._thinning = Thinning()
        self._log = LiveLog(self.path / LOG, LONGEST_LINE, self._thinning)
        self.run, self._began_at = RunNow(self.path.name), time.monotonic()
        self.run.is_held, self.is_read = is_held(self.path), False

    async def _panels(self, more: Collection[str]) -> dict[str, Markup]:
        if self.failure:
            return {"top": element("p", f"The log cannot be read on: {self.failure}", class_="bad")}
        if not self.is_read and not self.run.lines:
            return {"top": element("p", "The log is being read.")}
        made = {}
        for name, panel in PANELS.items():
            if name not in ON_DEMAND or name in more:
                made[name] = panel.make(self.run)
                await asyncio.sleep(0)
        if not self.is_read:
            share = element("p", f"The log is being read: {100 * self._log.share_read:.0f} %.", class_="note")
            made["top"] = Markup(share + made["top"])
        return made


class Watchers:
    """All runs that are looked at; `close` ends their reading."""

    def __init__(self) -> None:
        self._watched: dict[Path, tuple[Watched, asyncio.Task[None]]] = {}

    @contextlib.asynccontextmanager
    async def looking(self, path: Path, more: Collection[str] = ()) -> AsyncIterator[Watched | None]:
        """The run of a folder, which is read at least until the block ends; None where too many are looked at."""
        self._let_go()
        found = self._watched.get(path)
        if found is None or found[0].failure:
            if len(self._watched) >= MOST_WATCHED and not self._make_room():
                yield None
                return
            watched = Watched(path)
            found = self._watched[path] = watched, asyncio.create_task(watched.keep())
        with found[0].frames.wanting(more):
            yield found[0]

    async def catch_up(self, seconds: float) -> None:
        """Bring each page up to date, within some seconds in all."""
        until = time.monotonic() + seconds
        for watched, _ in list(self._watched.values()):
            await watched.catch_up(until)

    async def close(self) -> None:
        """End all reading."""
        tasks = [task for _, task in self._watched.values()]
        self._watched.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _let_go(self) -> None:
        now = time.monotonic()
        for path, (watched, _) in list(self._watched.items()):
            if not watched.frames.readers and now - watched.seen_at > UNSEEN_S:
                self._end(path)

    def _make_room(self) -> bool:
        idle = [(watched.seen_at, path) for path, (watched, _) in self._watched.items() if not watched.frames.readers]
        if not idle:
            return False
        self._end(min(idle)[1])
        return True

    def _end(self, path: Path) -> None:
        self._watched.pop(path)[1].cancel()


def _digest(html: str) -> bytes:
    return hashlib.blake2b(html.encode(), digest_size=8).digest()
