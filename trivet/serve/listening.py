"""The socket that a server answers on, and whether it may be there. Light to import: a port in use shows at once."""

from __future__ import annotations

import errno
import ipaddress
import socket

from trivet.base.errors import ResourceError, TrivetError


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
