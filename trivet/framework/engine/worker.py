"""The thread that owns the engine. Everything reaches it as a message, so nothing else needs a lock."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from trivet.base.errors import OverloadedError, RequestError, TrivetError, UnavailableError
from trivet.framework.engine.delta import Delta
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Request, new_request
from trivet.framework.engine.terms import DEFAULT_TERMS, Terms
from trivet.framework.memory.mapped import check_files

_log = logging.getLogger(__name__)


class _Mailbox:
    """Where one request's deltas arrive, in the event loop that asked for them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.items: asyncio.Queue[Delta | TrivetError] = asyncio.Queue()


@dataclass(frozen=True)
class _Add:
    """A request, and where its deltas go."""

    request: Request
    mailbox: _Mailbox


@dataclass(frozen=True)
class _Abort:
    """A request to end, if it is still here."""

    request_id: str


@dataclass(frozen=True)
class _AbortAll:
    """Every request is to end."""


@dataclass(frozen=True)
class _TellWhenIdle:
    """Somebody waits until nothing is in progress."""

    told: Future[None]


@dataclass(frozen=True)
class _Stop:
    """The thread is to end."""


_Message = _Add | _Abort | _AbortAll | _TellWhenIdle | _Stop
_Post = list[tuple[_Mailbox, Delta | TrivetError]]


class AsyncEngine:
    """An engine on a thread of its own, for any number of event loops.

    `start` it once; `drain` lets what is running finish; `close` ends the thread. Should the thread die, every
    waiting request and every later one gets UnavailableError, and `is_alive` turns false.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="trivet-engine", daemon=True)
        self._refusal: UnavailableError | None = None  # why no request is taken, once none is
        self._has_ended = False
        self._mailboxes: dict[str, _Mailbox] = {}  # the thread's own, like the engine
        self._idle_listeners: list[Future[None]] = []  # the thread's own

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_accepting(self) -> bool:
        return self.is_alive and self._refusal is None

    def start(self) -> None:
        self._thread.start()

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        request_id: str,
        *,
        cache_salt: str = "",
        terms: Terms = DEFAULT_TERMS,
    ) -> AsyncGenerator[Delta, None]:
        """The deltas of a request, until all of its `n` choices have finished. Closing the iterator aborts it.

        A request that cannot be served raises here, before anything is computed: RequestError for what was asked,
        UnavailableError while draining or stopped. It joins the line when the first delta is asked for, and raises
        OverloadedError then if the engine is full.
        """
        request = new_request(request_id, prompt_ids, params, cache_salt, terms)
        self._engine.validate(request)
        self._check_accepting()
        return self._deltas(request)

    def abort(self, request_id: str) -> None:
        """Whoever reads the request's deltas gets a last one with "abort". No such request: nothing happens."""
        self._messages.put(_Abort(request_id))

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and let those here finish; after `timeout_s` seconds abort them. Did all finish?"""
        self._refusal = self._refusal or UnavailableError(
            "the engine is draining", "retry on another replica, or later"
        )
        if await self._idle(timeout_s):
            return True
        self._messages.put(_AbortAll())
        await self._idle(None)
        return False

    def close(self) -> None:
        """End the thread after the step it is in. Requests still here get UnavailableError."""
        self._refusal = self._refusal or UnavailableError("the engine is stopped", "start it again")
        self._messages.put(_Stop())
        if self._thread.ident is not None:
            self._thread.join()

    async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
        self._check_accepting()
        mailbox = _Mailbox()
        num_unfinished = request.params.n
        self._messages.put(_Add(request, mailbox))
        # The thread sets `_has_ended` before it empties its messages for the last time. One put after that is
        # answered by nobody, and seen here.
        if self._has_ended:
            raise self._why_ended()
        try:
            while num_unfinished:
                item = await mailbox.items.get()
                if isinstance(item, TrivetError):
                    num_unfinished = 0
                    raise item
                if item.finish_reason is not None:
                    num_unfinished -= 1
                yield item
        finally:
            if num_unfinished:
                self.abort(request.request_id)

    def _check_accepting(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if not self.is_alive:
            raise UnavailableError("the engine is not started", "call start() first")

    def _why_ended(self) -> UnavailableError:
        return self._refusal or UnavailableError("the engine is stopped", "start it again")

    async def _idle(self, timeout_s: float | None) -> bool:
        """Wait until the engine has no work, or has ended; false after `timeout_s`."""
        told: Future[None] = Future()
        self._messages.put(_TellWhenIdle(told))
        if self._has_ended or not self.is_alive:
            return True
        try:
            await asyncio.wait_for(asyncio.wrap_future(told), timeout_s)
        except TimeoutError:
            return False
        return True

    def _run(self) -> None:
        try:
            while self._take_messages():
                if self._engine.has_work:
                    self._deliver(self._engine.step())
                    check_files()  # a model that is damaged has nothing to tell the next request either
                if not self._engine.has_work:
                    self._tell_idle()
            self._engine.close()
        except BaseException as error:
            self._refusal = UnavailableError(f"the engine has died: {error!r}", "read its log and start it again")
            _log.critical("event=engine_died error=%r", error, exc_info=error)
        self._end()

    def _take_messages(self) -> bool:
        """Act on every message that is here; with no work, sleep until there is one. False after a stop."""
        message = self._next_message(wait=not self._engine.has_work)
        while message is not None:
            if isinstance(message, _Stop):
                return False
            self._act(message)
            message = self._next_message(wait=False)
        return True

    def _next_message(self, wait: bool) -> _Message | None:
        try:
            return self._messages.get(block=wait)
        except queue.Empty:
            return None

    def _act(self, message: _Message) -> None:
        if isinstance(message, _Add):
            self._add(message)
        elif isinstance(message, _Abort):
            self._deliver(self._engine.abort(message.request_id))
        elif isinstance(message, _AbortAll):
            self._deliver(self._engine.abort_all())
        elif isinstance(message, _TellWhenIdle):
            self._idle_listeners.append(message.told)

    def _add(self, message: _Add) -> None:
        try:
            self._engine.add(message.request)
        except (RequestError, OverloadedError) as error:
            self._post([(message.mailbox, error)])
            return
        self._mailboxes[message.request.request_id] = message.mailbox

    def _deliver(self, deltas: list[Delta]) -> None:
        self._post([(self._mailboxes[delta.request_id], delta) for delta in deltas])
        self._forget_finished(deltas)

    def _forget_finished(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if delta.finish_reason is not None and not self._engine.holds(delta.request_id):
                self._mailboxes.pop(delta.request_id, None)

    def _post(self, post: _Post) -> None:
        """One wake-up per event loop, however many deltas: waking a loop costs more than a delta."""
        by_loop: dict[asyncio.AbstractEventLoop, _Post] = defaultdict(list)
        for mailbox, item in post:
            by_loop[mailbox.loop].append((mailbox, item))
        for loop, items in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, items)
            except RuntimeError:  # the loop is closed: nobody will ever read these
                for request_id in [key for key, mailbox in self._mailboxes.items() if mailbox.loop is loop]:
                    self._engine.abort(request_id)
                    del self._mailboxes[request_id]

    def _tell_idle(self) -> None:
        for told in self._idle_listeners:
            if told.set_running_or_notify_cancel():
                told.set_result(None)
        self._idle_listeners.clear()

    def _end(self) -> None:
        """Nobody waits for a thread that is gone."""
        self._has_ended = True
        error = self._why_ended()
        waiting = list(self._mailboxes.values())
        while (message := self._next_message(wait=False)) is not None:
            if isinstance(message, _Add):
                waiting.append(message.mailbox)
            elif isinstance(message, _TellWhenIdle):
                self._idle_listeners.append(message.told)
        self._mailboxes.clear()
        self._post([(mailbox, error) for mailbox in waiting])
        self._tell_idle()


def _put_all(post: _Post) -> None:
    for mailbox, item in post:
        mailbox.items.put_nowait(item)
