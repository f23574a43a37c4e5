"""Shared memory without names: made by the supervisor, handed to children by descriptor, gone with the last user.

A named segment outlives a killed owner, can clash with another run's, and is limited by the size of /dev/shm. A memfd
has none of this: the kernel takes its bytes back when the last descriptor and mapping are gone, whatever the reason.
Pages are reserved when a segment is made, because a mapping that the kernel cannot back ends in SIGBUS at the first
write, where no code can catch it. Seals keep every process from changing the size under the others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import struct
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mlxe_async.errors import ProtocolError, ResourceError

STAMP_BYTES = 128
LAYOUT_VERSION = 1

_FULL_GROWN = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Segment:
    """A piece of anonymous shared memory, mapped readable and writable.

    The segment owns its descriptor. Make one with `create` (the supervisor) or `attach` (everybody else).

    Args:
        name: what people call it; it names nothing in the file system.
        fd: descriptor of the memory.
        size: bytes to map.
    """

    def __init__(self, name: str, fd: int, size: int) -> None:
        self.name = name
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.buffer = memoryview(self._map)
        self._open = True

    @classmethod
    def create(cls, name: str, size: int, *, grows: bool = False) -> Self:
        """New memory of `size` bytes, all zero, its pages reserved, its size sealed.

        Args:
            name: what people call it.
            size: bytes.
            grows: `grow` may be called once by the process that writes here; shrinking is sealed at once.

        Raises:
            ResourceError: the kernel cannot reserve that much.
            ValueError: `size` is not positive.
        """
        if size <= 0:
            raise ValueError(f"segment {name}: size must be positive, got {size}")
        try:
            fd = os.memfd_create(f"mlxe-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise ResourceError(f"segment {name}: the kernel gave no memory descriptor: {error.strerror}") from error
        try:
            _reserve(name, fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | (0 if grows else _FULL_GROWN))
            return cls(name, fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, name: str, fd: int, size: int | None = None) -> Self:
        """Map memory another process made. The segment takes the descriptor over and closes it in `close`.

        What is forked from this process has no such memory: touching it there ends that copy by SIGSEGV.

        Args:
            name: what people call it.
            fd: descriptor of the memory, inherited or received.
            size: bytes it must have; None takes what is there.

        Raises:
            ProtocolError: the descriptor is no such memory, or has another size. The descriptor stays open then.
        """
        try:
            found = os.fstat(fd).st_size
            if found <= 0 or (size is not None and found != size):
                raise ProtocolError(f"segment {name}: expected {size or 'some'} bytes, found {found}")
            segment = cls(name, fd, found)
            # An environment may fork, and its copy of us come back to our code and go on: not with our memory.
            segment._map.madvise(mmap.MADV_DONTFORK)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"segment {name}: descriptor {fd} cannot be mapped: {error}") from error
        return segment

    def grow(self, size: int, *, sealed: bool = True) -> None:
        """Make it at least `size` bytes, the new ones zero and reserved, and map all of it; then its size is sealed.

        No view of the former mapping may be used afterwards. Other processes keep what they mapped. Where it is not
        `sealed`, it may grow again.

        Raises:
            ResourceError: the kernel cannot reserve that much, or the size is sealed already.
        """
        if size > (reserved := os.fstat(self.fd).st_size):
            _reserve(self.name, self.fd, size, reserved)
        if sealed and not fcntl.fcntl(self.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _FULL_GROWN)
        self.size = os.fstat(self.fd).st_size
        self._map = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._map.madvise(mmap.MADV_DONTFORK)
        self.buffer = memoryview(self._map)

    def array(self, offset: int, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """A numpy view of `shape` and `dtype` on the bytes from `offset`.

        Raises:
            ValueError: it would end beyond the segment.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self.buffer, dtype=dtype, count=count, offset=offset).reshape(shape)

    def close(self) -> None:
        """Give mapping and descriptor back. May be called twice. Views that are still alive keep the mapping alive."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(BufferError):
            self.buffer.release()
        with contextlib.suppress(BufferError):
            self._map.close()
        del self.buffer, self._map
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reserve(name: str, fd: int, size: int, reserved: int = 0) -> None:
    # Asked for more than there is, the kernel does not refuse: it takes page after page until it has to kill a process.
    if size - reserved > (left := available_memory()):
        more = f"{_mebibytes(size - reserved)} more" if reserved else _mebibytes(size)
        raise ResourceError(f"segment {name}: cannot reserve {more}: only {_mebibytes(left)} are left")
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        reason = "not enough memory" if error.errno in (errno.ENOSPC, errno.ENOMEM) else error.strerror
        raise ResourceError(f"segment {name}: cannot reserve {_mebibytes(size)}: {reason}") from error


def write_stamp(segment: Segment, magic: bytes, *numbers: int) -> None:
    """Say at both ends of a segment what it is: `magic` (8 bytes), layout version, `numbers` (uint64), CRC.

    The second copy shows that writer and reader mean the same size, and that nothing ran over the end.
    """
    stamp = struct.pack(f"<8sQ{len(numbers)}Q", magic, LAYOUT_VERSION, *numbers)
    stamp = (stamp + struct.pack("<Q", crc32(stamp))).ljust(STAMP_BYTES, b"\0")
    segment.buffer[:STAMP_BYTES] = stamp
    segment.buffer[segment.size - STAMP_BYTES :] = stamp


def read_stamp(segment: Segment, magic: bytes, count: int) -> tuple[int, ...]:
    """The `count` numbers that `write_stamp` wrote; where one copy is damaged, by the other.

    Raises:
        ProtocolError: both copies are damaged, they differ, or they speak of something else.
    """
    copies = bytes(segment.buffer[:STAMP_BYTES]), bytes(segment.buffer[segment.size - STAMP_BYTES :])
    body = struct.calcsize(f"<8sQ{count}Q")
    whole = [
        copy for copy in copies if copy[body:] == struct.pack("<Q", crc32(copy[:body])).ljust(STAMP_BYTES - body, b"\0")
    ]
    found, version, *numbers = struct.unpack_from(f"<8sQ{count}Q", (whole or copies)[0])
    if found != magic:
        raise ProtocolError(f"segment {segment.name}: expected a header {magic!r}, found {found!r}")
    if version != LAYOUT_VERSION:
        raise ProtocolError(f"segment {segment.name}: expected layout version {LAYOUT_VERSION}, found {version}")
    if not whole or len(set(whole)) > 1:
        raise ProtocolError(f"segment {segment.name}: both copies of its header are damaged")
    return tuple(numbers)


FEW_ALIKE = 4


def _stem(name: str) -> str:
    """`lane-` of `lane-12`; all of a name that does not end in a number."""
    return name.rstrip("0123456789")


class BytePlan:
    """What will be allocated, by name, in exact Python integers, before a single byte is."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, int]] = []

    def add(self, name: str, nbytes: int) -> None:
        """Plan `nbytes` bytes for `name`.

        Raises:
            ValueError: `nbytes` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"byte plan: {name} must not be negative, got {nbytes}")
        self._parts.append((name, nbytes))

    @property
    def total(self) -> int:
        """All planned bytes."""
        return sum(nbytes for _, nbytes in self._parts)

    def lines(self) -> list[str]:
        """The plan as lines of a table, the total last; many numbered parts of one size, in a row, are one line."""
        rows = []
        for (stem, nbytes), parts in itertools.groupby(self._parts, lambda part: (_stem(part[0]), part[1])):
            names = [name for name, _ in parts]
            if len(names) <= FEW_ALIKE:
                rows += [(name, nbytes) for name in names]
            else:
                last = names[-1].removeprefix(stem)
                rows.append((f"{names[0]} to {last}, each {_mebibytes(nbytes).strip()}", nbytes * len(names)))
        rows.append(("total", self.total))
        width = max(len(name) for name, _ in rows)
        return [f"{name:<{width}}  {_mebibytes(nbytes):>14}" for name, nbytes in rows]

    def check(self, available: int) -> None:
        """Hold the plan against `available` bytes.

        Raises:
            ResourceError: it does not fit; the message holds the whole plan.
        """
        if self.total > available:
            raise ResourceError(
                "\n".join(
                    [
                        "memory plan:",
                        *self.lines(),
                        f"the plan needs {_mebibytes(self.total)}, this host or its control group has "
                        f"{_mebibytes(available)} left",
                    ]
                )
            )


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can still be taken: the least of what the host and each control group above us have left.

    File pages that a control group could drop at once count as free, as the host's own figure does.
    """
    left = [_host_memory(proc), *_cgroup_memory(proc, cgroups)]
    return max(0, min(left))


def _host_memory(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ResourceError(f"{proc / 'meminfo'} does not say how much memory is available")


def _cgroup_memory(proc: Path, cgroups: Path) -> list[int]:
    """Bytes left in each control group that limits this process, both versions of the interface."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    left: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = root / path.strip("/")
        # Inside a container the path may be the host's: then only the root of what we can see counts.
        for folder in (group, *group.parents):
            if (limit := _number(folder / names[0])) is not None:
                used = _number(folder / names[1]) or 0
                left.append(limit - used + _reclaimable(folder, names[2]))
            if folder == root:
                break
    return left


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return None


def _reclaimable(folder: Path, key: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0


def _mebibytes(nbytes: int) -> str:
    if nbytes >= 1 << 60:  # beyond any host; and a float could not hold some of these
        return f"{nbytes:.1e} B" if nbytes < 1 << 1000 else "> 2^1000 B"
    return f"{nbytes / 2**20:,.2f} MiB"
