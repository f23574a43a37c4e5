"""Files that are whole or absent, private to their user, and never written through a planted link."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

STAGED = ".staged-"

# A name that stays where it is put: no separators, no leading dot or dash, nothing to escape.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
    stat.S_IFREG: "a file",
}


def kind_of(mode: int) -> str:
    """Return what a thing in a file system is, by its mode, with its article."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def expect_file(descriptor: int, path: str | os.PathLike[str], *, or_device: bool = False) -> None:
    """See that an open descriptor is that of a regular file; `or_device`: /dev/null and its like will do too.

    Raises:
        OSError: it is something else.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode) and not (or_device and stat.S_ISCHR(mode)):
        raise OSError(errno.EINVAL, f"it is {kind_of(mode)}, expected a regular file", os.fspath(path))


def is_folder(path: Path) -> bool:
    """Return whether there is a folder, or a link to one; False also for what cannot be the path of anything."""
    try:
        return path.is_dir()
    except (OSError, ValueError):  # too long a name, a null character
        return False


def is_file(path: Path) -> bool:
    """Return whether there is a regular file, or a link to one; False also for what cannot be the path of anything."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def make_folder(path: Path, *, exclusive: bool = False) -> None:
    """Make a folder with mode 0700 whatever the umask; parents too. An existing one is left as it is.

    Raises:
        FileExistsError: it exists, and `exclusive` was asked for.
        OSError: it cannot be made.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if exclusive or not path.is_dir():
            raise
        return
    path.chmod(0o700)


@contextlib.contextmanager
def new_file(path: Path, *, durable: bool) -> Iterator[int]:
    """A descriptor to write a file that must not exist yet, mode 0600 whatever the umask; on failure nothing is left.

    Args:
        path: where.
        durable: whether it must survive a power cut, from the end of the block on.

    Raises:
        OSError: it exists, or cannot be written whole.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            os.fchmod(descriptor, 0o600)
            yield descriptor
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_new(path: Path, data: bytes, *, durable: bool) -> None:
    """Write a whole file that must not exist yet; see `new_file`.

    Raises:
        OSError: it exists, or cannot be written whole.
    """
    with new_file(path, durable=durable) as descriptor:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]


def replace_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Put `data` at `path` in one step: a reader, or a crash at any moment, finds the old file or the new one.

    Args:
        path: where; what is there now is replaced (a link is replaced, not followed).
        data: the whole content.
        durable: whether it must survive a power cut.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    staged = path.with_name(f"{STAGED}{path.name}")
    staged.unlink(missing_ok=True)
    write_new(staged, data, durable=durable)
    try:
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_plain(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, not through a link, and without waiting for the writer of a FIFO.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        expect_file(descriptor, path)
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes, not through a link.

    Raises:
        OSError: it cannot be read, or is longer.
    """
    with open_plain(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{path.name} is longer than {limit} bytes")
    return data
