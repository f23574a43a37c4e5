"""Pages, their streams of changes, and the same in JSON: requests to read alone, by readers who may.

A stream sends the parts that have changed since it last sent them. A reader that takes nothing for ten seconds is cut
off: what is held for it is one message at most, besides what the kernel takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from aiohttp import web

from mlxe_async.analysis.report.markup import Markup
from mlxe_async.cli.dashboard.access import HEADERS, Access, Asked
from mlxe_async.cli.dashboard.listing import Runs, list_of
from mlxe_async.cli.dashboard.panels import ON_DEMAND
from mlxe_async.cli.dashboard.shell import ICON, LIST, page_of_list, page_of_run, script, style
from mlxe_async.cli.dashboard.state import state_of
from mlxe_async.cli.dashboard.watching import Frames, Watchers
from mlxe_async.storage.safe_text import visible

MOST_CONNECTIONS, MOST_STREAMS = 256, 128
FIRST_REQUEST_S = 10.0  # for a connection to ask for something
SLOW_S = 10.0  # for a reader to take what it was sent
BEAT_S = 10.0  # between two signs of life
LAST_S = 0.5  # for a last word to each reader
LIST_EVERY_S = 2.0
UNTIL_READ_S = 20.0
KEEP_ALIVE_S = 30.0
_CHECK_S, _LOOK_S = 0.05, 0.1

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves the runs of a folder on a socket that listens, until `stop`.

    Args:
        listener: the socket.
        access: who may read.
        base: the folder.
    """

    def __init__(self, listener: socket.socket, access: Access, base: Path) -> None:
        self.dropped = 0
        "Readers that were cut off because they took nothing."
        self.streams = 0
        "Streams that are open."
        self._listener, self._access = listener, access
        self._runs, self._watchers = Runs(base), Watchers()
        self._list = Frames(self._listed)
        self._over, self._none_left = asyncio.Event(), asyncio.Event()
        self._silent: set[web.RequestHandler] = set()  # connections without a request yet

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve as long as the block lasts; its end tells each reader the last state, and that it is over."""

        @web.middleware
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            self._silent.discard(request.protocol)
            if refusal := self._access.refusal(_asked(request, self._access.cookie)):
                return web.Response(status=403, text=f"{refusal}\n")
            return await handler(request)

        application = web.Application(middlewares=[guard])
        for path, handler in {
            "/": self._list_page,
            "/stream": self._list_stream,
            "/runs.json": self._list_json,
            "/run/{name}": self._run_page,
            "/run/{name}/stream": self._run_stream,
            "/run/{name}/state.json": self._run_json,
            "/page.js": _constant(script(), "text/javascript"),
            "/style.css": _constant(style(), "text/css"),
            "/icon.svg": _constant(ICON, "image/svg+xml"),
        }.items():
            application.router.add_get(path, handler, allow_head=False)
        application.on_response_prepare.append(_with_headers)
        runner = web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=LAST_S,
        )
        await runner.setup()
        loop = asyncio.get_running_loop()
        accepting = await loop.create_server(lambda: self._connection(runner), sock=self._listener)
        listing = asyncio.create_task(self._keep_list())
        try:
            yield
        finally:
            accepting.close()
            await self._watchers.catch_up(LAST_S)
            self._over.set()
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)
            if self.streams:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_S):
                        await self._none_left.wait()
            for connection in runner.server.connections if runner.server else ():
                if connection.transport is not None:
                    connection.transport.abort()
            await self._watchers.close()
            await runner.cleanup()

    def _connection(self, runner: web.AppRunner) -> asyncio.BaseProtocol:
        """A new connection: one of not too many, which soon asks for something."""
        server = runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS:
            return _Closed()
        made = server()
        self._silent.add(made)
        asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._close_silent, made)
        return made

    def _close_silent(self, made: web.RequestHandler) -> None:
        if made in self._silent:
            self._silent.discard(made)
            if made.transport is not None:
                made.transport.abort()

    # -- pages --------------------------------------------------------------------------------------------------------

    async def _list_page(self, request: web.Request) -> web.Response:
        return self._page(request, page_of_list(visible(str(self._runs.base), 200)))

    async def _run_page(self, request: web.Request) -> web.Response:
        return self._page(request, page_of_run(self._run(request).name))

    async def _list_json(self, _request: web.Request) -> web.Response:
        found = [
            {"run": one.name, "state": one.state, "what": one.what, **one.counts} for one in await self._runs.listed()
        ]
        return _json(found)

    async def _run_json(self, request: web.Request) -> web.Response:
        async with self._watchers.looking(self._run(request)) as watched:
            if watched is None:
                raise web.HTTPServiceUnavailable(text="too many runs are looked at; close the page of one\n")
            frame = watched.frames.newest
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNTIL_READ_S):
                    while not watched.is_read and not watched.failure:
                        frame = await watched.frames.after(frame.number, _LOOK_S) or frame
            if watched.failure:
                raise web.HTTPServiceUnavailable(text=f"the log cannot be read: {watched.failure}\n")
            return _json({**state_of(watched.run), "is_read": watched.is_read})

    def _run(self, request: web.Request) -> Path:
        path = self._runs.find(request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound(text="there is no such run in this folder\n")
        return path

    def _page(self, request: web.Request, html: str) -> web.Response:
        response = web.Response(text=html, content_type="text/html")
        if "token" in request.query:  # the right one, or it would have been refused
            response.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="Strict", path="/")
        return response

    # -- streams ------------------------------------------------------------------------------------------------------

    async def _run_stream(self, request: web.Request) -> web.StreamResponse:
        asked = request.query.get("more", "").split(",")
        more = ON_DEMAND.intersection(asked)
        async with self._watchers.looking(self._run(request), more) as watched:
            if watched is None:
                raise web.HTTPServiceUnavailable(text="too many runs are looked at; close the page of one\n")
            return await self._stream(request, watched.frames, ON_DEMAND - more)

    async def _list_stream(self, request: web.Request) -> web.StreamResponse:
        with self._list.wanting(()):
            return await self._stream(request, self._list)

    async def _stream(self, request: web.Request, frames: Frames, unwanted: Collection[str] = ()) -> web.StreamResponse:
        if self.streams >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text="too many pages are open; close one\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.streams += 1
        self._none_left.clear()
        try:
            await response.prepare(request)
            await self._send_changes(request, response, frames, unwanted)
        except ConnectionError:  # the reader has gone
            pass
        finally:
            self.streams -= 1
            if not self.streams:
                self._none_left.set()
        return response

    async def _send_changes(
        self, request: web.Request, response: web.StreamResponse, frames: Frames, unwanted: Collection[str]
    ) -> None:
        sent: dict[str, bytes] = {}
        number = 0
        over, coming = asyncio.create_task(self._over.wait()), None
        try:
            while not over.done():
                coming = asyncio.create_task(frames.after(number, BEAT_S))
                await asyncio.wait({coming, over}, return_when=asyncio.FIRST_COMPLETED)
                coming.cancel()
                frame = frames.newest
                message = frame.changes(sent, unwanted) or b": still here\n\n"
                number, sent = frame.number, frame.digests
                if over.done():
                    message += b"event: over\ndata: \n\n"
                if not await self._send(request, response, message):
                    return
        finally:
            for task in (over, coming):
                if task is not None:
                    task.cancel()

    async def _send(self, request: web.Request, response: web.StreamResponse, message: bytes) -> bool:
        """Send a message and wait until it is taken; False where it was not, and the reader is cut off."""
        transport = request.transport
        if transport is None:
            return False
        try:
            async with asyncio.timeout(LAST_S if self._over.is_set() else SLOW_S):
                await response.write(message)
                await asyncio.sleep(0)  # an event loop may write at the end of its turn
                # A transport has no event for an empty buffer.
                while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110 - see above
                    await asyncio.sleep(_CHECK_S)
        except TimeoutError:
            self.dropped += 1
            transport.abort()
            return False
        return not transport.is_closing()

    async def _keep_list(self) -> None:
        while True:
            if self._list.readers:
                await self._list.make()
            await self._list.pause(LIST_EVERY_S)

    async def _listed(self, _more: Any) -> dict[str, Markup]:
        return {LIST: list_of(await self._runs.listed())}


class _Closed(asyncio.Protocol):
    """A connection more than there may be: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _asked(request: web.Request, cookie: str) -> Asked:
    headers = request.headers
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    cookies = [request.cookies[cookie]] if cookie in request.cookies else []
    return Asked(
        hosts=headers.getall("Host", []),
        origins=headers.getall("Origin", []),
        site=headers.get("Sec-Fetch-Site", ""),
        is_visit=headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document",
        tokens=[*request.query.getall("token", [])] or [*cookies, *([bearer] if scheme.lower() == "bearer" else [])],
    )


async def _with_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _constant(text: str, content_type: str) -> _Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type, charset="utf-8")

    return answer


def _json(value: Any) -> web.Response:
    return web.Response(text=json.dumps(value, allow_nan=False), content_type="application/json")
