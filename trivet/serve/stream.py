"""A response of server-sent events that notices when its reader has gone, and says it is alive while nothing comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from trivet.base.errors import TrivetError
from trivet.serve.errors import refusal
from trivet.serve.frames import DONE

KEEP_ALIVE_S = 15.0  # proxies cut a silent connection after 30 to 60 s
KEEP_ALIVE = b": keep-alive\n\n"

_log = logging.getLogger("trivet.serve")
T = TypeVar("T")


class ClientGone(Exception):
    """Nobody is reading: there is nothing to answer, only work to stop."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client closes its connection.

    Call it once the whole body was read: from then on `receive` has only the disconnect to tell.

    Raises:
        ClientGone: the client went first.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        # Waited for, so that what `work` held (slots of the KV pool) is free when this returns.
        await asyncio.gather(working, gone, return_exceptions=True)


class EventStream(Response):
    """Sends each of `frames` as it comes, closes them when the client goes.

    Nothing is sent before the first frame or keep-alive, so that a request refused at once still gets its status.
    After that an error is an event of its own, followed by `[DONE]`.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None], keep_alive_s: float = KEEP_ALIVE_S) -> None:
        # no-transform and X-Accel-Buffering keep proxies from collecting tokens before they pass them on.
        super().__init__(headers={"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._keep_alive_s = keep_alive_s
        self._has_started = False
        self._last_sent = time.monotonic()
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        beating = asyncio.ensure_future(self._beat(send))
        try:
            await unless_gone(receive, self._write(send))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        try:
            async with contextlib.aclosing(self._frames) as frames:
                async for frame in frames:
                    await self._send(send, frame)
        except Exception as error:
            if not self._has_started:
                raise
            if not isinstance(error, TrivetError):
                _log.exception("event=stream_failed")
            await self._send(send, b"data: " + refusal(error).body() + b"\n\n" + DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send) -> None:
        while True:
            quiet_s = time.monotonic() - self._last_sent
            if quiet_s >= self._keep_alive_s:
                await self._send(send, KEEP_ALIVE)
                quiet_s = 0
            await asyncio.sleep(self._keep_alive_s - quiet_s)

    async def _send(self, send: Send, chunk: bytes) -> None:
        # The lock keeps a keep-alive from overtaking the headers while these wait for a full socket.
        async with self._sending:
            if not self._has_started:
                start: Message = {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
                await send(start)
                self._has_started = True
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._last_sent = time.monotonic()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
