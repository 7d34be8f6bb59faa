"""One client's connection: how much it may send beside bodies, and how long it may keep the server waiting.

A request is known, and its key asked for, once its headers are whole. uvicorn bounds neither them nor the time until
then: anybody could fill the memory, or take every descriptor, without a key. Nor does it mind a client that reads
nothing of its answer, whose place then nobody else can have.
"""

from __future__ import annotations

from asyncio import TimerHandle
from asyncio.transports import BaseTransport
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trivet.serve.errors import HttpError, refusal
from trivet.serve.service import ServiceLimits


class Connection(HttpToolsProtocol):
    """uvicorn's, within `limits`.

    A time runs whenever there is nothing to answer: from the beginning, or the first byte behind an answer, to the end
    of a request's headers. uvicorn has one of its own for a connection that sends nothing after an answer. Another time
    runs while the client takes nothing of what is sent.
    """

    def __init__(self, *arguments: Any, limits: ServiceLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._waiting: TimerHandle | None = None  # for the headers of a request
        self._stalled: TimerHandle | None = None  # by what the client does not read
        # Of the request that is being received: its body, and all else, which is headers, trailers and the lengths of
        # chunks. Of the latter only what came after the bytes in which it began: there are only so many of those.
        self._body_bytes = self._other_bytes = 0
        self._has_begun = False  # in the bytes at hand

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        self._stall_no_more()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stall_no_more()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        self._has_begun, before = False, self._body_bytes
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._has_begun:
            self._other_bytes += len(data) - (self._body_bytes - before)
        # The chunks of a body may be shorter than what stands around each.
        around_chunks = min(8 * self._body_bytes, self._limits.max_body_bytes)
        if self._other_bytes > self._limits.max_head_bytes + around_chunks:
            self._refuse_head()
        elif self._is_idle and self._waiting is None:
            self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._body_bytes = self._other_bytes = 0
        self._has_begun = True

    def on_headers_complete(self) -> None:
        self._wait_no_more()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    @property
    def _is_idle(self) -> bool:
        """Is nothing to be answered?"""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self._limits.read_s, self._give_up)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stall_no_more(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _give_up(self) -> None:
        self._waiting = None
        self.transport.close()

    def _refuse_head(self) -> None:
        if self._is_idle:  # else an answer is on its way, which other bytes would spoil
            body = refusal(HttpError(431, "head_too_large",
                                     f"the headers are above {self._limits.max_head_bytes} bytes")).body()  # fmt: skip
            self.transport.write(
                b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (STATUS_LINE[431], len(body), body)
            )
        self.transport.close()
