"""The time of a process, by what it does or waits for: one writer in shared memory, read by the supervisor.

At every moment a process is in exactly one mode, from the moment it is asked for until it is dead. So the seconds of
all modes add up to the time that went by. Of some modes each spell is counted too, by how long it was.
"""

from __future__ import annotations

import time
from typing import Any

from mlxe_async.ipc.shared.latencies import BUCKETS

MODES = (
    "starting",
    "waiting",
    "working",
    "acting",
    "stepping",
    "resetting",
    "room",
    "taking_in",
    "drawing",
    "gathering",
    "updating",
    "publishing",
    "keeping",
    "testing",
    "saving",
    "exchanging",
)
"""A process does one of these. `waiting`: for a request. `room`: for room in its lane.
`exchanging`: it waits for the gradients of others. `working`: anything else."""
NUMBERS = {mode: number for number, mode in enumerate(MODES)}
STARTING, WAITING, WORKING, ROOM = (NUMBERS[mode] for mode in ("starting", "waiting", "working", "room"))
TIMED = ("acting", "stepping", "updating", "publishing")
"""Modes of which each spell is counted by its length: a call of the policy or of the environments, an update, ..."""
_PLACES = tuple(TIMED.index(mode) * BUCKETS if mode in TIMED else None for mode in MODES)
_FINEST_BITS, LAST = 10, BUCKETS - 1
_SUMS_NBYTES = 8 * (2 + len(MODES))
NBYTES = _SUMS_NBYTES + 4 * BUCKETS * len(TIMED)
_MODE, _SINCE, _SPENT = 0, 1, 2
_LOOKS = 5


class Hours:
    """Nanoseconds by mode, and the present mode and its beginning.

    Args:
        buffer: shared memory, zero at first.
        offset: where its `NBYTES` bytes begin; a multiple of 8.
    """

    def __init__(self, buffer: Any, offset: int) -> None:
        self._all = memoryview(buffer).cast("B")[offset : offset + NBYTES]
        self._words = self._all[:_SUMS_NBYTES].cast("Q")
        self._counts = self._all[_SUMS_NBYTES:].cast("I")

    def begin(self) -> None:
        """The supervisor's, before the process is made: all is 0, and it is starting from now on."""
        self.clear()
        self._words[_SINCE] = time.monotonic_ns()

    def clear(self) -> None:
        """The supervisor's, once the process is dead: nothing is counted."""
        self._all[:] = bytes(NBYTES)

    def switch(self, mode: int, now_ns: int | None = None) -> int:
        """The process does something else from now on, by its place in `MODES`; returns what it did before."""
        words, now = self._words, time.monotonic_ns() if now_ns is None else now_ns
        before, since = words[_MODE], words[_SINCE]
        if since:
            spell = now - since
            words[_SPENT + before] += spell
            words[_SINCE] = now
            if (place := _PLACES[before]) is not None:
                counts = self._counts
                if (bits := spell.bit_length()) > _FINEST_BITS:  # as `bucket_of`, whose call would cost half of this
                    place += min(LAST, 4 * (bits - _FINEST_BITS) - 3 + ((spell >> (bits - 3)) & 3))
                counts[place] = (counts[place] + 1) & 0xFFFFFFFF
        words[_MODE] = mode
        return before

    def seconds(self) -> dict[str, float]:
        """Return what was spent so far, by mode; modes without any are left out."""
        for _ in range(_LOOKS):
            mode, since, *spent = self._words
            if (mode, since) == (self._words[_MODE], self._words[_SINCE]):
                break  # else the process has switched meanwhile
        if since:
            spent[min(mode, len(spent) - 1)] += max(0, time.monotonic_ns() - since)
        return {name: ns / 1e9 for name, ns in zip(MODES, spent, strict=True) if ns}

    def counts(self) -> dict[str, list[int]]:
        """Return how many spells of each of `TIMED` there were, by bucket; modes without any are left out."""
        several = {mode: self._counts[n * BUCKETS : (n + 1) * BUCKETS].tolist() for n, mode in enumerate(TIMED)}
        return {mode: counts for mode, counts in several.items() if any(counts)}

    def release(self) -> None:
        """Let go of the shared memory."""
        for view in (self._words, self._counts, self._all):
            view.release()
