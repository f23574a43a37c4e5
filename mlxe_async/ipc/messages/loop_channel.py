"""The supervisor's end of a control channel, on the event loop.

It uses the loop's `add_reader` and `add_writer` on the bare socket instead of a transport: that works the same on
asyncio and uvloop, can carry descriptors, is made and closed without an `await` (so a cancellation has no moment to
leak it), and keeps its own account of unsent bytes: transports buffer without limit for a peer that has stopped
reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.messages.channel import READ_BYTES, receive_with_fds, send_some
from mlxe_async.ipc.messages.frames import MAX_REQUEST, Decoder, Message, encode

UNSENT_LIMIT = 256 * 1024
FRAME_LIMIT_S = 1.0

Ended = Literal["ended", "broken", "unresponsive"]


class SupervisorChannel:
    """The supervisor's end, driven by the running loop. All callbacks come from that loop.

    Args:
        sock: one end of a stream socketpair; owned from now on.
        on_message: called with each message and the descriptors it announces by its field `fds` (a number).
        on_closed: called once, never after `close()`, with a sentence and what it amounts to: `"ended"` the peer
            closed its end, `"broken"` what it sends is not the protocol, or a frame stays unfinished for a second,
            `"unresponsive"` it has not read 256 KiB.
        fds: whether descriptors are accepted. Without it they are dropped by the kernel.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, list[int]], None],
        on_closed: Callable[[Ended, str], None],
        *,
        fds: bool = False,
    ) -> None:
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._on_message = on_message
        self._on_closed = on_closed
        self._takes_fds = fds
        self._fds: deque[int] = deque()
        self._decoder = Decoder()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._unsent_bytes = 0
        self._writing = False
        self._frame_timer: asyncio.TimerHandle | None = None
        self.closed = False
        self._loop.add_reader(self._fd, self._read)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message now or as soon as the peer reads. The caller may close `fds` right away.

        After the channel is closed nothing is sent and nothing raised: the peer's death is told elsewhere.

        Raises:
            ProtocolError: the message is not plain JSON or too large.
            OSError: it has to wait, and there is no room for copies of `fds`; nothing is sent.
        """
        data = memoryview(encode(message, MAX_REQUEST))
        if self.closed:
            return
        if not self._unsent:
            try:
                data = data[send_some(self._sock, data, fds) :]
                fds = ()
            except BlockingIOError:
                pass
            except OSError as error:
                # Told on the next turn of the loop: the caller is in the middle of something.
                self._loop.call_soon(self._fail, "ended", f"cannot be written to: {error.strerror}")
                return
        if not data:
            return
        copies = _copied(fds)
        if not self._writing:
            self._loop.add_writer(self._fd, self._write)
            self._writing = True
        self._unsent.append((data, copies))
        self._unsent_bytes += len(data)
        if self._unsent_bytes > UNSENT_LIMIT:
            self._loop.call_soon(self._fail, "unresponsive", f"does not read: {self._unsent_bytes} bytes wait for it")

    def drain(self) -> None:
        """Take in what has already arrived; used when the peer is known to be dead."""
        while not self.closed and self._read():
            pass

    def close(self) -> None:
        """Close the socket and forget what is unsent. May be called twice."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        if self._frame_timer is not None:
            self._frame_timer.cancel()
        self._sock.close()
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()
        _close_all(self._fds)
        self._fds.clear()

    def _fail(self, ended: Ended, sentence: str) -> None:
        if not self.closed:
            self.close()
            self._on_closed(ended, sentence)

    def _read(self) -> bool:
        """Read once; returns whether there may be more."""
        try:
            if self._takes_fds:
                data, fds = receive_with_fds(self._sock)
                self._fds.extend(fds)
            else:
                data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except ProtocolError as error:
            self._fail("broken", f"broke the protocol: {error}")
            return False
        except OSError as error:
            self._fail("ended", f"cannot be read from: {error.strerror}")
            return False
        if not data:
            self._fail("ended", "closed its control channel")
            return False
        try:
            messages = self._decoder.feed(data)
            for message in messages:
                if self.closed:
                    break
                self._on_message(message, self._announced(message) if self._takes_fds else [])
        except ProtocolError as error:
            self._fail("broken", f"broke the protocol: {error}")
            return False
        if self._decoder.partial or self._frame_timer is not None:
            self._watch_frame()
        return True

    def _announced(self, message: Message) -> list[int]:
        count = message.get("fds", 0)
        if not isinstance(count, int) or not 0 <= count <= len(self._fds):
            raise ProtocolError(f"a message announces {count!r} descriptors, {len(self._fds)} came")
        return [self._fds.popleft() for _ in range(count)]

    def _watch_frame(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None
        if self._decoder.partial and not self.closed:
            self._frame_timer = self._loop.call_later(FRAME_LIMIT_S, self._frame_overdue)

    def _frame_overdue(self) -> None:
        # The rest may be waiting in the socket when it was this loop that stood still.
        self._frame_timer = None
        self.drain()
        if self._decoder.partial and self._frame_timer is None:
            self._fail("broken", f"left a control frame unfinished for {FRAME_LIMIT_S:g} s")

    def _write(self) -> None:
        while self._unsent:
            data, fds = self._unsent.popleft()
            try:
                sent = send_some(self._sock, data, fds)
            except BlockingIOError:
                self._unsent.appendleft((data, fds))
                return
            except OSError as error:
                _close_all(fds)
                self._fail("ended", f"cannot be written to: {error.strerror}")
                return
            _close_all(fds)
            self._unsent_bytes -= sent
            if sent < len(data):
                self._unsent.appendleft((data[sent:], []))
        self._loop.remove_writer(self._fd)
        self._writing = False


def _copied(fds: Sequence[int]) -> list[int]:
    """Copies of all of them, or none."""
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401 - those made before one that fails are to be closed
    except OSError:
        _close_all(copies)
        raise
    return copies


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
