"""Lines on stderr that never harm: not the terminal, not the run.

Whatever comes from outside is escaped. While a run is on, a reader that has stopped reading costs dropped lines, not a
stopped run, and one that has gone costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from mlxe_async.ipc.processes import linux
from mlxe_async.storage.safe_text import visible

WHOLE = 4096  # bytes that a pipe reported as writable takes without blocking: PIPE_BUF of Linux
PATIENCE_S = 1.0


class Console:
    """Writes lines to a stream, and keeps a block below them that changes if the stream is a terminal.

    Of the block only the lines that changed are written again: it may be far away, over a slow connection.

    Args:
        stream: usually `sys.stderr`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        self.written = 0  # bytes
        self.on_gone: Callable[[], None] = lambda: None
        "Called when something was to be written and the reader had gone."
        try:
            self._descriptor = stream.fileno()
            self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        except (OSError, ValueError):  # a stream without a descriptor, or closed
            self._descriptor = -1
            self.is_terminal = False
        self._stream = stream
        self._block: list[tuple[str, int]] = []  # lines, and the columns they take; the cursor is below them
        self._columns = 0

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal; 80 and 24 where there is none."""
        try:
            size = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def line(self, text: str) -> None:
        """Write a line above the block, or drop it if that would mean waiting."""
        block = self._block
        if self._write(f"{self._clear()}{visible(text)}\n"):
            self._redraw(block)

    def show(self, block: Sequence[tuple[str, int]]) -> None:
        """Replace the block on a terminal.

        Args:
            block: for each line what to write, which must be harmless, and how many columns it takes.
        """
        columns = self.size[0]
        if len(block) != len(self._block) or columns != self._columns:
            self._columns = columns
            if self._write(self._clear()):
                self._redraw(block)
            return
        moves, row = [], len(block)
        for number, (new, old) in enumerate(zip(block, self._block, strict=True)):
            if new != old:
                moves.append(f"{_down(number - row)}\r{new[0]}\x1b[K")
                row = number
        if moves and self._write(f"{''.join(moves)}{_down(len(block) - row)}\r"):
            self._block = list(block)

    def finish(self, *lines: str) -> None:
        """Write the last lines, below what the block shows; worth waiting a moment for."""
        self._block = []
        for text in lines:
            self._write(f"{visible(text)}\n", PATIENCE_S)

    def _redraw(self, block: Sequence[tuple[str, int]]) -> None:
        if block and self._write("".join(f"{line}\r\n" for line, _ in block)):
            self._block = list(block)

    def _clear(self) -> str:
        """Return what removes the block; it may take more lines than it had, if the terminal has become narrower."""
        columns = max(1, self.size[0])
        lines = sum(max(1, -(-width // columns)) for _, width in self._block)
        self._block = []
        return f"{_down(-lines)}\r\x1b[J" if lines else ""

    def _write(self, text: str, patience_s: float = 0.0) -> bool:
        """Return whether all of it was written; if not, the block's state is unknown, and it is begun anew."""
        data = text.encode("utf-8", "backslashreplace")
        if self._descriptor < 0:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
            return True
        while data:
            part, data = data[:WHOLE], data[WHOLE:]
            try:
                written = os.write(self._descriptor, part) if self._writable(patience_s) else 0
            except BrokenPipeError:
                written = 0
                self.on_gone()
            except OSError:
                written = 0
            self.written += written
            if not written:
                self.dropped += 1
                self._block = []
                return False
        return True

    def _writable(self, patience_s: float) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        try:
            return bool(poll.poll(patience_s * 1000))
        except OSError:
            return False


def _down(lines: int) -> str:
    return f"\x1b[{lines}B" if lines > 0 else f"\x1b[{-lines}A" if lines else ""


def open_missing_streams() -> None:
    """Let stdin, stdout and stderr lead to /dev/null where they are closed, so that no file of ours lands there."""
    missing = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    if not missing:
        return
    linux.open_missing_std()
    for name in missing:
        number = ("stdin", "stdout", "stderr").index(name)
        stream = os.fdopen(number, "r" if number == 0 else "w", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)


def silence_broken_pipes() -> None:
    """Flush, and let the interpreter's own flush at exit go nowhere if the readers are gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), stream.fileno())
