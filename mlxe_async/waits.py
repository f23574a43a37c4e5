"""Waits of torch's threads for each other: awake while cores are free, asleep while other programs want them.

A thread of OpenMP that has to wait looks for its fellows a number of times before it sleeps. One that sleeps takes
longer to wake than a small operation takes; one that looks takes a core from other programs. The number is read once,
when a process begins (`GOMP_SPINCOUNT`). But where a process has more such threads than it may use cores,
libgomp has them look 100 times only (`gomp_throttled_spin_count_var`). So further pools of threads, which have nothing
to do, let all of them sleep soon, and no bit of what is computed depends on it.

Linux tells how long each thread was ready to run and had no core (`/proc/self/task/*/schedstat`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

SPINS = "30000"
"""The times that a thread looks while cores are free, 0.3 ms: Python takes less between two operations of an update."""
LOOK_S = 0.25
"""Seconds between two looks at how long threads were without a core."""
BUSY, CALM = 0.16, 0.1
"""Shares of that time, of all that they were ready to run, above which they sleep soon, and below which no longer."""
LEAST_NS = 10_000_000
"""Time ready to run, in nanoseconds, that says something."""
GRAIN = 32_768
"""Numbers for each of torch's threads, so that all of them take part in an addition."""
Ready = tuple[int, int]
"""Nanoseconds that all threads of a process ran, and that they were ready to run without a core."""


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that has threads look `SPINS` times; none where the user has said how they wait."""
    return {} if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environ.keys() else {"GOMP_SPINCOUNT": SPINS}


class Crowd(Protocol):
    """Threads without work, see `Pools`."""

    def gather(self) -> None:
        """Have them; those of now stay."""

    def dismiss(self) -> None:
        """Have none."""


class Pools:
    """Pools of torch's threads, enough that there are more threads than cores.

    Args:
        threads: of one pool, two or more.
        cores: that this process may use.
    """

    def __init__(self, threads: int, cores: int) -> None:
        self._threads, self._count = threads, max(0, (cores - threads) // (threads - 1) + 1)
        self._over = threading.Event()
        self._pools: list[threading.Thread] = []

    def gather(self) -> None:
        """Begin them, if they have not begun; as many as the system allows."""
        if self._pools:
            return
        self._over, here = threading.Event(), list[threading.Event]()
        for _ in range(self._count):
            one = threading.Event()
            pool = threading.Thread(target=self._idle, args=(one, self._over), daemon=True)
            try:
                pool.start()
            except RuntimeError:  # no more threads may be had: waits stay long, and all goes on
                break
            self._pools.append(pool)
            here.append(one)
        for one in here:
            one.wait()

    def dismiss(self) -> None:
        """End them, and wait until they have."""
        self._over.set()
        for pool in self._pools:
            pool.join()
        self._pools = []

    def _idle(self, is_here: threading.Event, over: threading.Event) -> None:
        import torch

        try:
            torch.zeros(self._threads * GRAIN).add_(1)  # which makes the pool of this thread
        finally:
            is_here.set()
        over.wait()


class Waits:
    """Has torch's threads sleep soon while cores are short, in a process whose threads share operations.

    Args:
        crowd: what has them sleep.
        ready: how long all threads ran, and were without a core; None: the system does not tell.
        clock: seconds.
    """

    def __init__(
        self, crowd: Crowd, ready: Callable[[], Ready | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._crowd, self._ready, self._clock = crowd, ready, clock
        self.are_short = False
        "True while they sleep soon."
        self._next_at = clock() + LOOK_S
        self._seen = ready()
        if self._seen is None:
            self._have(short=True)

    @staticmethod
    def here() -> Waits | None:
        """Those of this process; None where one thread computes alone, or the user has said how threads wait."""
        torch = sys.modules.get("torch")
        threads = 1 if torch is None else torch.get_num_threads()
        if threads == 1 or os.environ.get("GOMP_SPINCOUNT") != SPINS:
            return None
        return Waits(Pools(threads, len(os.sched_getaffinity(0))), ready_here)

    def look(self) -> None:
        """Look, if it is time to, whether cores are short."""
        if self._seen is None or (now := self._clock()) < self._next_at:
            return
        self._next_at = now + LOOK_S
        found = self._ready()
        if found is None:
            return
        ran, waited = (after - before for before, after in zip(self._seen, found, strict=True))
        if 0 <= ran + waited < LEAST_NS:
            return
        self._seen = found
        if min(ran, waited) < 0:  # threads have ended, and their time is gone
            return
        share = waited / (ran + waited)
        if share > BUSY or share < CALM:
            self._have(short=share > BUSY)

    def _have(self, *, short: bool) -> None:
        if short and not self.are_short:
            self._crowd.gather()
        elif self.are_short and not short:
            self._crowd.dismiss()
        self.are_short = short


def ready_here(threads: Path = Path("/proc/self/task")) -> Ready | None:
    """Nanoseconds that the threads of this process ran, and were without a core; None: the system does not tell.

    Those that have ended do not count.
    """
    ran = waited = 0
    try:
        for one in threads.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                first, second, _ = (one / "schedstat").read_text().split()
                ran, waited = ran + int(first), waited + int(second)
    except OSError:
        return None
    return (ran, waited) if ran else None
