"""Control words: single unsigned 64-bit numbers in shared memory, each with exactly one writer.

A word stands alone on a line of 128 bytes, so that no two writers fight for a cache line and no word straddles one: an
aligned 8-byte access is one machine instruction, and no reader ever sees half a number. All arithmetic is done on
Python integers and taken modulo 2^64 on the way in.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxe_async.ipc.shared.hours import NUMBERS, Hours

WORD_STRIDE = 128
PAGE_BYTES = 4096
MASK = 2**64 - 1
CALLS = (
    "", "import", "make", "reset", "step", "act", "load", "build", "update", "evaluate", "save", "restore"
)  # fmt: skip
"What a worker may say that it is doing; on its page stands the place in this list."

_WORDS_PER_STRIDE = WORD_STRIDE // 8
_CALL_NUMBERS = {call: number for number, call in enumerate(CALLS)}
_MODES = {"reset": "resetting", "step": "stepping", "act": "acting", "update": "updating", "evaluate": "testing"}
_MODES |= {"save": "saving", "restore": "saving", "make": "starting", "import": "starting", "build": "starting"}
_MODE_OF = tuple(NUMBERS[_MODES[call]] if call in _MODES else None for call in CALLS)
_HOURS_OFFSET = 2048


class Words:
    """Named uint64 words in a buffer, `WORD_STRIDE` bytes apart.

    Args:
        buffer: shared memory.
        offset: where the first word is; a multiple of `WORD_STRIDE`.
        names: the words in order.

    Raises:
        ValueError: the offset is not aligned or the buffer too small.
    """

    def __init__(self, buffer: Any, offset: int, names: Sequence[str]) -> None:
        if offset % WORD_STRIDE:
            raise ValueError(f"words: the offset must be a multiple of {WORD_STRIDE}, got {offset}")
        self.nbytes = len(names) * WORD_STRIDE
        view = memoryview(buffer).cast("B")[offset : offset + self.nbytes]
        if len(view) != self.nbytes:
            raise ValueError(f"words: {self.nbytes} bytes needed from offset {offset}, found {len(view)}")
        self.names = tuple(names)
        self._words = view.cast("Q")
        self._index = {name: place * _WORDS_PER_STRIDE for place, name in enumerate(names)}

    def get(self, name: str) -> int:
        """The word's value."""
        return self._words[self._index[name]]

    def set(self, name: str, value: int) -> None:
        """Store `value` modulo 2^64. Only the word's one writer may do this."""
        self._words[self._index[name]] = value & MASK

    def release(self) -> None:
        """Let go of the shared memory, which else stays mapped as long as this object; there are no words any more."""
        self._words.release()


class ProgressPage(Words):
    """A worker's page of liveness, judged by the supervisor without asking the worker.

    A ping would be answered by a thread while the environment hangs; this page says what the worker's own loop does.
    Words: `state`, `in_call_since_ns` (0 outside calls), `limit_ms` (0 means none), `progress`, `pid`, `epoch`, and
    `call`, the place in `CALLS` of what it is doing. `hours` says how its time is spent.

    Args:
        buffer: shared memory.
        offset: where the page of `PAGE_BYTES` bytes begins.
    """

    def __init__(self, buffer: Any, offset: int = 0) -> None:
        super().__init__(buffer, offset, ("state", "in_call_since_ns", "limit_ms", "progress", "pid", "epoch", "call"))
        self._since = self._index["in_call_since_ns"]
        self._limit = self._index["limit_ms"]
        self._progress = self._index["progress"]
        self._call = self._index["call"]
        self.hours = Hours(buffer, offset + _HOURS_OFFSET)
        self._outside: int | None = None

    def enter(self, limit_s: float | None, call: str = "") -> None:
        """The worker begins a call, one of `CALLS`, that must return within `limit_s` seconds; None or 0: no limit."""
        words, number, now = self._words, _CALL_NUMBERS[call], time.monotonic_ns()
        words[self._call] = number
        words[self._limit] = max(1, int(limit_s * 1000)) if limit_s else 0
        words[self._since] = now
        mode = _MODE_OF[number]
        if mode is not None:
            before = self.hours.switch(mode, now)
            if self._outside is None:
                self._outside = before

    def leave(self) -> None:
        """The call returned: that is progress."""
        words = self._words
        if self._outside is not None:
            self.hours.switch(self._outside)
            self._outside = None
        words[self._since] = words[self._call] = 0
        words[self._progress] = (words[self._progress] + 1) & MASK

    def lift_limit(self) -> None:
        """The call that the worker is in may take as long as it likes: a debugger stands in it."""
        self._words[self._limit] = 0

    def note(self, call: str) -> None:
        """The worker does this now, one of `CALLS`, outside of calls that have limits of their own."""
        self._words[self._call] = _CALL_NUMBERS[call]

    @contextlib.contextmanager
    def spending(self, mode: str) -> Iterator[None]:
        """The worker spends its time on this inside, one of `hours.MODES`."""
        before = self.hours.switch(NUMBERS[mode])
        try:
            yield
        finally:
            self.hours.switch(before)

    def overdue(self, now_ns: int) -> float | None:
        """Seconds by which the present call has outstayed its limit at `now_ns` (`time.monotonic_ns`), else None."""
        words = self._words
        since = words[self._since]
        limit_ms = words[self._limit]
        if not since or not limit_ms or words[self._since] != since:
            return None
        late = (now_ns - since) / 1e9 - limit_ms / 1e3
        return late if late > 0 else None

    def pulse(self) -> tuple[int, int]:
        """What changes as long as the worker moves: its progress, and since when it is in a call (0: in none)."""
        return self._words[self._progress], self._words[self._since]

    def doing(self, now_ns: int) -> str:  # noqa: ARG002 - which of several pages counts depends on the time
        """Return what the worker says that it is doing, one of `CALLS`; empty if nothing is known."""
        number = self._words[self._call]
        return CALLS[number] if number < len(CALLS) else ""

    def clear(self) -> None:
        """All words to 0: the supervisor's, after a worker is proven dead and before the next one starts."""
        for name in self.names:
            self.set(name, 0)

    def end(self) -> None:
        """The supervisor's, once the worker is dead: its time is over."""
        self.hours.clear()

    def release(self) -> None:
        """Let go of the shared memory."""
        super().release()
        self.hours.release()


class ProgressPages:
    """The pages of one process, one for each of its threads that work at the same time, judged together.

    The process hangs as soon as one of its threads does, however busily the others move their own words.

    Args:
        pages: all of them.
    """

    def __init__(self, pages: Sequence[ProgressPage]) -> None:
        self._pages = tuple(pages)
        self._former = [Counter[str]() for _ in self._pages]
        self._counted: list[dict[str, list[int]]] = [{} for _ in self._pages]
        self._told: list[dict[str, list[int]]] = [{} for _ in self._pages]

    def overdue(self, now_ns: int) -> float | None:
        """Seconds by which the call that is longest over its limit has outstayed it at `now_ns`, None if none has."""
        if len(self._pages) == 1:  # as nearly always
            return self._pages[0].overdue(now_ns)
        return max((late for page in self._pages if (late := page.overdue(now_ns)) is not None), default=None)

    def pulse(self) -> tuple[int, int]:
        """Return what changes as long as any thread moves; the second is 0 while none is in a call."""
        if len(self._pages) == 1:
            return self._pages[0].pulse()
        pulses = [page.pulse() for page in self._pages]
        return sum(progress for progress, _ in pulses) & MASK, max(since for _, since in pulses)

    def doing(self, now_ns: int) -> str:
        """What the thread says that it is doing which is longest over its limit; if none is, the first that says so."""
        late = max(self._pages, key=lambda page: page.overdue(now_ns) or 0.0)
        return late.doing(now_ns) or next((call for page in self._pages if (call := page.doing(now_ns))), "")

    def clear(self) -> None:
        """All words of all pages to 0; the time of a process that is to come begins."""
        for page in self._pages:
            page.clear()
            page.hours.begin()

    def end(self) -> None:
        """The process is dead: its time is over, and was spent. May be called twice."""
        for page, former, counted in zip(self._pages, self._former, self._counted, strict=True):
            former.update(page.hours.seconds())
            counted |= _sums(counted, page.hours.counts())
            page.hours.clear()

    def seconds(self) -> list[dict[str, float]]:
        """Seconds by mode of each page, over all lives so far."""
        found = [former.copy() for former in self._former]
        for page, former in zip(self._pages, found, strict=True):
            former.update(page.hours.seconds())
        return [dict(one) for one in found]

    def new_counts(self) -> list[dict[str, list[int]]]:
        """Return the spells by mode and bucket of each page since this was asked last; see `Hours.counts`."""
        told, self._told = self._told, [
            counted | _sums(counted, page.hours.counts())
            for page, counted in zip(self._pages, self._counted, strict=True)
        ]  # fmt: skip
        return [_sums(before, now, -1) for before, now in zip(told, self._told, strict=True)]


def _sums(some: Mapping[str, Sequence[int]], more: Mapping[str, Sequence[int]], sign: int = 1) -> dict[str, list[int]]:
    """Return `more` and `sign` times `some`, as counters of 32 bits are added."""
    return {
        mode: [
            (one + sign * other) & 0xFFFFFFFF
            for one, other in zip(counts, some.get(mode, [0] * len(counts)), strict=True)
        ]
        for mode, counts in more.items()
    }
