"""What the tests of shared memory have in common: small lanes, and processes that never outlive their test."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlxe_async.ipc.shared.lanes import LaneWriter, format_lane, lane_bytes
from mlxe_async.ipc.shared.segments import Segment

HERE = Path(__file__).parent
SCHEMA = 0x5EED
STORES = 10  # of one block: mark, two halves of the payload, epoch, cut, count, length, crc, mark, commit
STARTS = (0, 2**32 - 3, 2**53 - 3, 2**63 - 3)  # where a careless width of number would break


def starts(capacity: int) -> tuple[int, ...]:
    """First sequence numbers that soon cross a power of two, 2^64 included."""
    return (*STARTS, 2**64 - capacity - 3)


def make_lane(slots: int = 4, payload_bytes: int = 64, start: int = 0) -> Segment:
    """A formatted lane before its first epoch."""
    segment = Segment.create("lane", lane_bytes(slots, payload_bytes))
    format_lane(segment, slots, payload_bytes, SCHEMA, start)
    return segment


class Died(Exception):
    """The process under test ends here."""


class Fuse:
    """Lets so many stores happen; the process dies before the next one."""

    def __init__(self, stores: int, die: Callable[[], None]) -> None:
        self.stores, self.die = stores, die

    def burn(self) -> None:
        if self.stores == 0:
            self.die()
        self.stores -= 1


class Fused:
    """A slot's header, or the control words, that burn a fuse at each store."""

    def __init__(self, words: Any, fuse: Fuse) -> None:
        self.words, self.fuse = words, fuse

    def __setitem__(self, place: int, value: int) -> None:
        self.fuse.burn()
        self.words[place] = value

    def get(self, name: str) -> int:
        return self.words.get(name)

    def set(self, name: str, value: int) -> None:
        self.fuse.burn()
        self.words.set(name, value)


def raise_died() -> None:
    """A death that leaves the test alive."""
    raise Died


def mortal(writer: LaneWriter, stores: int, die: Callable[[], None] = raise_died) -> Fuse:
    """Make a writer die after `stores` more stores. Those to the payload are the caller's to `burn`."""
    fuse = Fuse(stores, die)
    writer._headers = [Fused(header, fuse) for header in writer._headers]
    writer._control = Fused(writer._control, fuse)
    return fuse


@contextmanager
def lane_of(slots: int = 4, payload_bytes: int = 64, start: int = 0) -> Iterator[Segment]:
    """`make_lane`, closed at the end."""
    with make_lane(slots, payload_bytes, start) as segment:
        yield segment


def chance(seed: int) -> random.Random:
    """Repeatable chance."""
    return random.Random(seed)  # noqa: S311 - to be repeated, not to be secret


def wait_for_end(pid: int, seconds: float) -> bool:
    """Whether the child ends within so many seconds; it stays to be reaped."""
    pidfd = os.pidfd_open(pid)
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def in_fresh_process(name: str, *args: Any) -> Any:
    """What `module:function` returns in an interpreter of its own, through JSON.

    There, forking is cheap and nobody's threads are in the way, whatever this test process has loaded by now.
    """
    module, function = name.split(":")
    code = (
        f"import json, sys; sys.path.insert(0, {str(HERE)!r}); from {module} import {function}; "
        f"print(json.dumps({function}(*json.loads(sys.argv[1]))))"
    )
    command = [sys.executable, "-W", "error", "-c", code, json.dumps(args)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=900)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, err
    return json.loads(out)


def fork(body: Callable[[], None]) -> int:
    """A child that runs `body` and ends, whatever happens, without running any of the parent's clean-up."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, this process must end here
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def kill(pid: int) -> int:
    """SIGKILL and reap; the wait status."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


@contextmanager
def child(body: Callable[[], None]) -> Iterator[int]:
    """A forked child that is dead and reaped at the end of the block."""
    pid = fork(body)
    try:
        yield pid
    finally:
        with suppress(ChildProcessError):
            kill(pid)
