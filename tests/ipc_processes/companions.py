"""Entries of companions under test, and a supervisor with two of them that is to be killed."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading


def ends(spec, beside):
    """Write what was handed over, tell a line, and end."""
    beside.tell(f"got {spec['word']}\nin {os.nice(0)}")


def waits(spec, beside):
    """Say that it is there, and end when it is asked to."""
    beside.tell("ready")
    select.select([beside], [], [])
    assert beside.is_over


def never_ends(spec, beside):
    beside.tell("ready")
    threading.Event().wait()


def raises(spec, beside):
    raise OSError(28, "No space left on device")


def leaves(spec, beside):
    sys.exit(3)


def forks(spec, beside):
    """Leave a process of its own behind."""
    if os.fork() == 0:
        signal.pause()
    beside.tell("ready")


async def _supervise():
    from mlxe_async.ipc.processes.companion import Companion

    told = asyncio.Queue()
    both = [Companion(f"t-{entry[:9]}", f"companions:{entry}", {}, on_told=told.put_nowait) for entry in sys.argv[1:]]
    for one in both:
        one.start()
    for _ in both:
        await told.get()
    sys.stdout.write(" ".join(str(one.pid) for one in both) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_supervise())
