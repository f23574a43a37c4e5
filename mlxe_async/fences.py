"""Which order of stores and loads shared memory is used in, and on which machines it holds.

Nothing here is locked: a writer may be killed, and a reader never makes a writer wait. So each record in
shared memory says by itself whether it is whole, and writer and reader keep an order between what says so and the rest:

- A writer takes the mark away, or makes it odd; then come the bytes; then the mark. `fence` stands between these.
- A reader looks at the mark, copies the bytes, and looks at the mark again, with `fence` between these.

========================  ==================================  ==========================================
what                      x86: order of stores and loads       ARM and others: reordered but for fences
========================  ==================================  ==========================================
blocks of a lane, kept    holds by order alone                 holds by fences; without them the checksum
states, weights                                                notices what is torn
counters of a memory      holds by the checksum of each copy   the same; fences let an onlooker find them
rows and frames of a      holds by order alone: a stamp is     holds by fences alone: rows have no
replay                    taken away before a byte changes     checksum
messages                  the kernel's, that orders all        the kernel's, that orders all
========================  ==================================  ==========================================

The tests go through every interleaving of these protocols on a model of x86 and on one that is weaker than ARM. What
runs here was run on x86 alone.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable

X86 = frozenset({"x86_64", "AMD64", "i686"})


def lock_pair() -> Callable[[], None]:
    """A fence for machines that reorder more than x86 does.

    It releases and takes a lock that no other code knows. Python makes locks of functions that, by POSIX, synchronise
    memory; on ARMv8 nothing moves across a release that is followed by an acquire.
    """
    lock = threading.Lock()
    lock.acquire()

    def fence() -> None:
        lock.release()
        lock.acquire()

    return fence


def _nothing() -> None:
    """x86 shows stores in program order and does not reorder loads; that is all the protocols here ask for."""


fence: Callable[[], None] = _nothing if platform.machine() in X86 else lock_pair()
