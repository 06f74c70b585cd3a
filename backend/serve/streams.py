"""Answers over a connection that may go away: streams, and whole answers wanted only while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")


async def gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Awaitable[Result]) -> Result | None:
    """The work's result, or None, with the work cancelled, as soon as the client has left."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream(Response):
    """Server-sent events.

    Unlike Starlette's own streaming response it notices a client that has left while no event is due, gives
    up on one that takes nothing for ``stall_s``, and calls ``on_end`` in every case.
    """

    media_type = "text/event-stream"
    charset = ""  # the media type says it all: events are UTF-8

    def __init__(self, frames: AsyncIterator[bytes], stall_s: float, on_end: Callable[[], None]) -> None:
        self.frames = frames
        self.stall_s = stall_s
        self.on_end = on_end
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.raw_headers[[name for name, _ in self.raw_headers].index(b"content-length")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI's shape
        try:
            await while_connected(receive, self._send_all(send))
        finally:
            self.on_end()

    async def _send_all(self, send: Send) -> None:
        """Send every frame; stop quietly, the answer cut off, where the client takes nothing any more."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for frame in self.frames:
                await self._send(send, frame, more=True)
            await self._send(send, b"", more=False)
        except TimeoutError:
            return

    async def _send(self, send: Send, body: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self.stall_s):
            await send({"type": "http.response.body", "body": body, "more_body": more})
