"""The child's end of a control channel: blocking calls on one stream socket of a socketpair.

Kept free of asyncio, which the nursery and its children have no use for. The supervisor's end is in `loop_channel`.
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.messages.frames import Decoder, Message, encode

SEND_LIMIT_S = 60.0
READ_BYTES = 65536
MAX_FDS = 253  # the kernel's bound for one message


class ControlLost(EOFError):
    """The supervisor, or the descriptor that leads to it, is gone: the child has nothing left to live for."""


class ChildChannel:
    """The child's end: blocking calls with a limit. One thread receives; any may send, one whole message at a time.

    Args:
        sock: one end of a stream socketpair; owned from now on.
        epoch: how often the supervisor has started this child, from 1.
        fds: whether descriptors are accepted. Without it the kernel drops them.
    """

    def __init__(self, sock: socket.socket, epoch: int = 0, *, fds: bool = False) -> None:
        sock.setblocking(False)
        self.epoch = epoch
        self._sock = sock
        self._takes_fds = fds
        self._decoder = Decoder()
        self._messages: deque[Message] = deque()
        self._fds: deque[int] = deque()
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """The socket's descriptor, for a selector."""
        return self._sock.fileno()

    @property
    def waiting(self) -> bool:
        """True if a message, or the end of the channel, can be received without waiting."""
        return bool(self._messages) or bool(self._readable.poll(0))

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, or None when none came within `timeout_s`.

        Raises:
            ControlLost: the supervisor is gone.
            ProtocolError: what came is not a frame.
        """
        deadline = time.monotonic() + timeout_s
        while not self._messages:
            left = deadline - time.monotonic()
            if not self._readable.poll(max(0.0, left) * 1000):
                return None
            try:
                self._read()
            except BlockingIOError:
                continue
            except OSError as error:
                raise ControlLost(f"the control channel cannot be read: {error.strerror}") from error
        return self._messages.popleft()

    def take_fds(self, count: int) -> list[int]:
        """The next `count` descriptors that came along with messages; the caller owns them.

        Raises:
            ProtocolError: fewer have come.
        """
        if count > len(self._fds):
            raise ProtocolError(f"a message announces {count} descriptors, {len(self._fds)} came")
        return [self._fds.popleft() for _ in range(count)]

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message, waiting at most a minute for a supervisor that does not read.

        Raises:
            ProtocolError: the message is not plain JSON or too large.
            ControlLost: the supervisor is gone or does not read.
        """
        data = memoryview(encode(message))
        deadline = time.monotonic() + SEND_LIMIT_S
        with self._sending:
            self._send(data, fds, deadline)

    def _send(self, data: memoryview, fds: Sequence[int], deadline: float) -> None:
        while data:
            try:
                data = data[send_some(self._sock, data, fds) :]
                fds = ()
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0 or not self._writable.poll(left * 1000):
                    raise ControlLost(f"the supervisor has not read for {SEND_LIMIT_S:g} s") from None
            except OSError as error:
                raise ControlLost(f"the control channel cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Close the socket and every descriptor that was not taken. May be called twice."""
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _read(self) -> None:
        if self._takes_fds:
            data, fds = receive_with_fds(self._sock)
            self._fds.extend(fds)
        else:
            data = self._sock.recv(READ_BYTES)
        if not data:
            raise ControlLost("the supervisor is gone")
        self._messages.extend(self._decoder.feed(data))


def receive_with_fds(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Read what is there, and the descriptors that came along; they are not inherited by what is exec'd.

    `socket.recv_fds` takes flags and does not pass them on, so descriptors would leak into grandchildren.

    Raises:
        ProtocolError: some were lost, so that it cannot be told any more which belong to which message.
    """
    fds = array.array("i")
    room = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
    data, ancillary, flags, _ = sock.recvmsg(READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise ProtocolError("descriptors were lost on the way: too many open files")
    return data, list(fds)


def send_some(sock: socket.socket, data: memoryview, fds: Sequence[int]) -> int:
    """Send what fits now; the descriptors travel with the first byte."""
    if fds:
        return socket.send_fds(sock, [data], list(fds))
    return sock.send(data)
