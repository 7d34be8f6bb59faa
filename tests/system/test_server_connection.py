"""What a client may do to the server before it has asked anything: bytes on a socket, well-formed or not."""

import json
import socket
import time
from contextlib import closing, suppress
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import MODEL, CountingPlan, serving, until

from trivet.serve.service import ServiceLimits

GET = b"GET /health HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture(scope="module")
def server():
    limits = ServiceLimits(max_head_bytes=4096, max_body_bytes=100_000)
    with serving(limits=limits, api_key="secret") as server:
        yield server


@pytest.fixture(scope="module")
def impatient():
    with serving(limits=ServiceLimits(read_s=0.5), api_key="secret") as server:
        yield server


def connected(server):
    parts = urlsplit(server.url)
    return closing(socket.create_connection((parts.hostname, parts.port), timeout=10))


def answer(client):
    """All that comes until the server closes; a reset is an end too, of one who had more to say."""
    found = b""
    with suppress(ConnectionResetError, BrokenPipeError):
        while piece := client.recv(65536):
            found += piece
    return found


def send_without_end(client, piece, most_bytes=64 << 20):
    """How much was sent until the server would have no more."""
    sent = 0
    with suppress(ConnectionResetError, BrokenPipeError):
        while sent < most_bytes:
            client.sendall(piece)
            sent += len(piece)
    return sent


def trickle(client, piece, most_s=10):
    """For how many seconds the server took a piece after the other."""
    began = time.monotonic()
    with suppress(ConnectionResetError, BrokenPipeError):
        while time.monotonic() - began < most_s:
            client.sendall(piece)
            time.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("begin", "piece"),
    [(b"GET /", b"x" * 1000), (GET + b"x-long: ", b"x" * 1000), (GET, b"x-many: y\r\n" * 100), (b"", b"\r\n" * 1000),
     (POST + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"x-trailer: y\r\n" * 100)],
    ids=["path", "one header", "many headers", "empty lines", "trailers"],
)  # fmt: skip
def test_headers_without_end_are_cut_off(server, begin, piece):
    with connected(server) as client:
        client.sendall(begin)

        assert 16 << 20 > send_without_end(client, piece)


def test_headers_that_are_too_large_are_a_431(server):
    with connected(server) as client:
        client.sendall(GET)
        for _ in range(3):  # each in bytes of its own, so that none is left unread when the server closes
            time.sleep(0.05)
            client.sendall(b"x-long: %b\r\n" % (b"x" * 2000))

        found = answer(client)

    assert found.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"head_too_large"' in found


def test_headers_below_the_limit_are_taken(server):
    assert 200 == httpx.get(f"{server.url}/health", headers={"x-long": "x" * 3000}).status_code


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"G", GET], ids=["nothing", "a line", "a letter", "headers"])
def test_a_connection_that_asks_nothing_is_closed(impatient, begun):
    with connected(impatient) as client:
        client.sendall(begun)

        assert b"" == answer(client)


def test_one_that_trickles_is_closed_all_the_same(impatient):
    with connected(impatient) as client:
        client.sendall(GET)

        assert trickle(client, b"x-slow: y\r\n") < 10


def test_one_whose_refused_body_trickles_is_closed(impatient):
    with connected(impatient) as client:
        client.sendall(POST + b"content-length: 90000\r\n\r\n")

        assert trickle(client, b"x") < 10


def test_a_connection_may_ask_again_and_again():
    with serving(limits=ServiceLimits(read_s=1)) as server, httpx.Client(base_url=server.url) as client:
        for _ in range(4):
            time.sleep(0.4)
            assert 200 == client.get("/health").status_code


def test_an_answer_may_take_longer_than_a_request():
    asked = {"model": MODEL, "prompt": [300], "temperature": 0, "max_tokens": 20}
    with serving(CountingPlan(step_s=0.08), limits=ServiceLimits(read_s=1)) as server:
        response = httpx.post(f"{server.url}/v1/completions", json=asked)

    assert 20 == response.json()["usage"]["completion_tokens"]


def ask(**fields):
    body = json.dumps({"model": MODEL, "prompt": [300], "temperature": 0, "ignore_eos": True, **fields}).encode()
    return POST + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def is_served(server):
    response = httpx.post(f"{server.url}/v1/completions", json={"model": MODEL, "prompt": [300], "max_tokens": 1})
    assert response.status_code in (200, 429)
    return response.status_code == 200


def test_a_client_that_reads_nothing_does_not_keep_its_place():
    limits = ServiceLimits(max_choices=16, write_s=0.3)
    with serving(limits=limits) as server, connected(server) as client:
        client.sendall(ask(n=16, logprobs=20, max_tokens=400, stream=True))  # some 20 MB, more than sockets hold

        assert until(lambda: not is_served(server))
        assert until(lambda: is_served(server))


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_body_may_come_in_chunks_of_any_size(size):
    asked = b'{"model": "tiny", "prompt": "%b", "max_tokens": 1}' % (b"a" * 400)
    pieces = (asked[start : start + size] for start in range(0, len(asked), size))
    with serving(limits=ServiceLimits(max_head_bytes=500)) as server:
        assert 200 == httpx.post(f"{server.url}/v1/completions", content=pieces).status_code


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=25, deadline=None)
def test_no_bytes_stop_the_server(server, sent, begins_well):
    with connected(server) as client:
        with suppress(ConnectionResetError, BrokenPipeError):
            client.sendall((GET if begins_well else b"") + sent)
            client.shutdown(socket.SHUT_WR)
        answer(client)

    assert 200 == httpx.get(f"{server.url}/health").status_code
