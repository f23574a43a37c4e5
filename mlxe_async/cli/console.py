"""Lines on stderr that never harm: not the terminal, not the run.

Whatever comes from outside is escaped. While a run is on, a reader that has stopped reading costs dropped lines, not a
stopped run, and one that has gone costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import TextIO

from mlxe_async.logs.safe import visible

WHOLE = 4096  # bytes that a pipe reported as writable takes without blocking: PIPE_BUF of Linux
PATIENCE_S = 1.0


class Console:
    """Writes lines to a stream, with one line that keeps changing if the stream is a terminal.

    Args:
        stream: usually `sys.stderr`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        try:
            self._descriptor = stream.fileno()
            self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        except (OSError, ValueError):  # a stream without a descriptor, or closed
            self._descriptor = -1
            self.is_terminal = False
        self._stream = stream
        self._colours = self.is_terminal and not os.environ.get("NO_COLOR")
        self._updating = False

    def line(self, text: str) -> None:
        """Write a line, or drop it if that would mean waiting."""
        self._write(f"{self._clear()}{visible(text)}\n")
        self._updating = False

    def update(self, text: str) -> None:
        """On a terminal, replace the changing line; elsewhere the same as `line`."""
        if not self.is_terminal:
            self.line(text)
            return
        self._write(f"\r{self._dim(visible(text, self._width() - 2))}\x1b[K")
        self._updating = True

    def finish(self, *lines: str) -> None:
        """Write the last lines; worth waiting a moment for."""
        for text in lines:
            self._write(f"{self._clear()}{visible(text)}\n", PATIENCE_S)
            self._updating = False

    def _clear(self) -> str:
        return "\r\x1b[K" if self._updating else ""

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[22m" if self._colours else text

    def _width(self) -> int:
        try:
            return max(20, os.get_terminal_size(self._descriptor).columns or 80)
        except OSError:
            return 80

    def _write(self, text: str, patience_s: float = 0.0) -> None:
        data = text.encode("utf-8", "backslashreplace")
        if self._descriptor < 0:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
            return
        while data:
            part, data = data[:WHOLE], data[WHOLE:]
            if not self._writable(patience_s):
                self.dropped += 1
                return
            try:
                os.write(self._descriptor, part)
            except OSError:
                self.dropped += 1
                return

    def _writable(self, patience_s: float) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        try:
            return bool(poll.poll(patience_s * 1000))
        except OSError:
            return False


def silence_broken_pipes() -> None:
    """Flush, and let the interpreter's own flush at exit go nowhere if the readers are gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), stream.fileno())
