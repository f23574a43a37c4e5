"""A server of pages in this process, and a small client whose every wait has an end."""

import asyncio
import contextlib
import json
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

pytest.importorskip("aiohttp", reason="needs the extra dashboard")

from mlxe_async.cli.dashboard.access import Access
from mlxe_async.cli.dashboard.listening import LOOPBACK, listen
from mlxe_async.cli.dashboard.server import Server

LIMIT_S = 60.0
TOKEN = "a-token-of-the-tests"  # noqa: S105 - of servers that live for a moment
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def within(body, seconds=2 * LIMIT_S):
    """Run a coroutine function in a loop of its own, for so long at most."""

    async def limited():
        async with asyncio.timeout(seconds):
            return await body()

    return uvloop.run(limited())


@contextlib.asynccontextmanager
async def served(base):
    """(server, port) of a folder of runs."""
    listener = listen(0)
    port = listener.getsockname()[1]
    server = Server(listener, Access(LOOPBACK, port, TOKEN), Path(base))
    async with server.serving():
        yield server, port


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict = field(default_factory=dict)
    body: str = ""

    def json(self):
        return json.loads(self.body)


def request(port, path, headers, method="GET"):
    """The bytes of a request; `headers` may be pairs, to have one twice."""
    pairs = list(headers.items() if isinstance(headers, dict) else headers)
    if not any(name == "Host" for name, _ in pairs):
        pairs.insert(0, ("Host", f"127.0.0.1:{port}"))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs if value is not None)]
    return ("\r\n".join([*lines, "Connection: close", "", ""])).encode()


async def ask(port, path="/", headers=BEARER, method="GET"):
    """Ask for something, and read the answer to its end."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request(port, path, headers, method))
            answer = await _head(reader)
            answer.body = (await reader.read()).decode()
            return answer
        finally:
            writer.close()


async def _head(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    return Answer(int(first.split()[1]), {name: value for name, _, value in (line.partition(": ") for line in lines)})


class Stream:
    """A stream of changes as an attentive reader gets it; `parts` are the newest of all that were sent."""

    def __init__(self, reader):
        self._reader, self._rest, self.parts, self.is_over, self.sent = reader, b"", {}, False, []

    async def next(self, limit_s=LIMIT_S):
        """The parts of the next message that has some."""
        async with asyncio.timeout(limit_s):
            while True:
                size = int((await self._reader.readline()).strip() or b"0", 16)
                self._rest += (await self._reader.readexactly(size + 2))[:-2]
                while b"\n\n" in self._rest:
                    message, _, self._rest = self._rest.partition(b"\n\n")
                    lines = dict(line.split(": ", 1) for line in message.decode().splitlines() if ": " in line)
                    self.is_over |= lines.get("event") == "over"
                    if lines.get("event") == "panels":
                        changed = json.loads(lines["data"])
                        self.parts |= changed
                        self.sent.append(changed)
                if self.is_over or (self.sent and not self._rest):
                    return self.sent[-1] if self.sent else {}

    async def until(self, is_so, limit_s=LIMIT_S):
        """Read on until something holds of the parts."""
        deadline = time.monotonic() + limit_s
        while not is_so(self.parts):
            assert not self.is_over, "the stream is over"
            await self.next(deadline - time.monotonic())


@contextlib.asynccontextmanager
async def streamed(port, path):
    """The stream of changes of a page."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(request(port, path, BEARER))
        answer = await _head(reader)
    assert answer.status == 200, answer
    assert answer.headers["Content-Type"] == "text/event-stream"
    try:
        yield Stream(reader)
    finally:
        writer.close()


def deaf(port, path):
    """A connection that asks for a stream and never reads; its buffer is small."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(LIMIT_S)
    made.connect(("127.0.0.1", port))
    made.sendall(request(port, path, BEARER))
    return made


async def eventually(is_so, limit_s=LIMIT_S):
    """Look until something is so."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)
