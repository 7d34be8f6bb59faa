"""The listening socket, the thread that serves it, and how both come to an end."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import threading
from types import FrameType
from typing import Any, Self

import uvicorn
import uvloop

from trivet.base.errors import ResourceError, TrivetError
from trivet.serve.app import create_app
from trivet.serve.log import event
from trivet.serve.service import Service

CLOSE_S = 2  # after the drain: for the last bytes of responses to leave

_log = logging.getLogger("trivet.serve")


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to `host` and `port` (0: any free one). Bind before loading: a port in use shows at once.

    Raises:
        ResourceError: the port is taken, not permitted, or `host` is no address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ResourceError(f"host {host} cannot be listened on: {error.strerror}", "try --host 127.0.0.1") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise _cannot_bind(host, port, error) from None
    return listener


def check_exposure(host: str, has_api_key: bool, allow_open: bool) -> None:
    """Refuse to serve beyond this machine to whoever asks.

    Raises:
        TrivetError: `host` is not a loopback address, and there is neither a key nor leave to do without.
    """
    if has_api_key or allow_open or _is_loopback(host):
        return
    raise TrivetError(
        f"host {host} is reachable from other machines, and no API key is set",
        "set TRIVET_API_KEY, listen on --host 127.0.0.1, or pass --insecure to serve anyone who can connect",
    )


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
                http="httptools",
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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cannot_bind(host: str, port: int, error: OSError) -> ResourceError:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(
            f"port {port} on {host} is in use",
            f"pass --port {_free_port(host)}, or see who holds it: ss -ltnp 'sport = :{port}'",
        )
    if error.errno == errno.EACCES:
        return ResourceError(f"port {port} on {host} needs a privilege this process lacks", "pass a --port above 1023")
    return ResourceError(f"host {host} port {port} cannot be listened on: {error.strerror}", "try --host 127.0.0.1")


def _free_port(host: str) -> int:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        return int(probe.getsockname()[1])
