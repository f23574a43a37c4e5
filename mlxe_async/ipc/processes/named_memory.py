"""Named shared memory of simulators that were killed: they cannot take their names out of /dev/shm any more.

This program's own memory has no names. A simulator may name some, such as ViZDoom for its engine, and gives the names
back when it is closed. Who kills its processes looks first at what they have mapped, and removes it once no living
process maps it.

Only what the run itself brought about is removed: files of this user, made since the run began, that one of its killed
processes had mapped to write to and share.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from mlxe_async.ipc.processes import linux

PLACE = "/dev/shm/"  # noqa: S108 - the kernel's place for such memory, where nothing is created here
_CLOCK_OF_FILES = 5  # CLOCK_REALTIME_COARSE, which Python does not name: up to 10 ms behind `time.time()`


class NamedMemory:
    """Names that processes had mapped when they were killed.

    Args:
        place: folder of the names, with a slash at its end.
    """

    def __init__(self, place: str = PLACE) -> None:
        self._place, self._began = place, time.clock_gettime(_CLOCK_OF_FILES)
        self._noted: set[str] = set()

    def note_group(self, group: int) -> None:
        """Look at all processes of a group, which are about to be killed."""
        self.note_groups([group])

    def note_groups(self, groups: Collection[int]) -> None:
        """The same of several groups."""
        if self._candidates():
            self.note(pid for pid in linux.all_pids() if _group_of(pid) in groups)

    def note(self, pids: Iterable[int]) -> None:
        """Look at processes that are about to be killed."""
        if known := self._candidates():
            for pid in pids:
                self._noted |= known & self._mapped_by(pid)

    def remove(self) -> None:
        """Remove what was noted and no living process maps; what one still does is looked at again next time."""
        if not self._noted:
            return
        in_use = {name for pid in linux.all_pids() for name in self._mapped_by(pid)}
        for name in self._noted - in_use:
            with contextlib.suppress(FileNotFoundError):  # its owner has done so
                Path(name).unlink()
        self._noted &= in_use

    def _candidates(self) -> set[str]:
        """Files of this user that were made since the run began."""
        found = set()
        with contextlib.suppress(OSError):  # there is no such place on this host
            for entry in os.scandir(self._place):
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if about.st_uid == os.getuid() and min(about.st_ctime, about.st_mtime) >= self._began:
                        found.add(entry.path)
        return found

    def _mapped_by(self, pid: int) -> set[str]:
        """Names that a process has mapped to write to and share."""
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            return set()
        parts = [line.split(maxsplit=5) for line in lines if self._place in line]
        return {one[5] for one in parts if len(one) > 5 and one[1] == "rw-s" and one[5].startswith(self._place)}


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None
