"""The thread that serves a listening socket, and how both come to an end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from functools import partial
from types import FrameType
from typing import Any, Self, cast

import uvicorn
import uvloop

from trivet.serve.app import create_app
from trivet.serve.connection import Connection
from trivet.serve.log import event
from trivet.serve.service import Service

CLOSE_S = 2  # after the drain: for the last bytes of responses to leave

_log = logging.getLogger("trivet.serve")


class Server:
    """Serves `service` on `listener` from a thread of its own, so that the caller may load, probe or wait.

    with Server(service, listen("127.0.0.1", 8000)) as server:
        service.open(model)
        server.wait_for_signal()
    """

    def __init__(self, service: Service, listener: socket.socket, drain_s: float = 30.0) -> None:
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._service = service
        self._listener = listener
        self._drain_s = drain_s
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                create_app(service),
                http=cast(type[asyncio.Protocol], partial(Connection, limits=service.limits)),  # only called
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,  # past the 60 s of common proxies, so that they are the ones to close
                timeout_graceful_shutdown=CLOSE_S,
            )
        )
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="trivet-http", daemon=True)
        self._failure: BaseException | None = None
        # A byte for each event that ends a wait: a signal's number, or 0 when the thread or the drain has ended. A
        # socket and not a lock: a signal may reach the process in another thread, which wakes nobody who waits on one.
        self._events, self._tell = socket.socketpair()
        self._tell.setblocking(False)
        self._handlers: dict[int, Any] = {}

    def start(self) -> None:
        """Begin to answer. The socket listens already, so a client that is too early only waits."""
        self._thread.start()
        _log.info(event("listening", url=self.url))

    def wait_for_signal(self) -> None:
        """Return on SIGTERM or SIGINT; call it from the main thread. A second signal cuts the drain short."""
        signal.set_wakeup_fd(self._tell.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, _do_nothing)
        self._next_event(None)

    def stop(self) -> None:
        """Refuse new requests, let the running ones finish within the drain time, then close the socket.

        Raises:
            whatever ended the serving thread before it was asked to.
        """
        if self._thread.is_alive():
            draining = asyncio.run_coroutine_threadsafe(self._service.drain(self._drain_s), self._loop)
            draining.add_done_callback(lambda _: self._tell.send(b"\0"))
            if self._next_event(self._drain_s + CLOSE_S) != 0:
                self._uvicorn.force_exit = True
                draining.cancel()
            self._uvicorn.should_exit = True
            self._thread.join()
        self._service.close()
        if self._handlers:
            signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._events.close()
        self._tell.close()
        _log.info(event("stopped", url=self.url))
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._uvicorn.serve(sockets=[self._listener]))
        except BaseException as error:  # handed to the thread that calls stop
            self._failure = error
        finally:
            self._tell.send(b"\0")

    def _next_event(self, timeout_s: float | None) -> int | None:
        """Wait for a signal, and return its number, or for an end, and return 0; None after `timeout_s`."""
        self._events.settimeout(timeout_s)
        try:
            return self._events.recv(1)[0]
        except TimeoutError:
            return None


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """A handler, so that Python writes the signal's number where `Server` reads it."""
