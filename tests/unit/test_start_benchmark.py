"""benchmarks/start.py, against servers that are a few lines."""

import sys

import pytest

from benchmarks.start import Server, measure
from trivet.base.errors import TrivetError

_PROGRAM = """
import http.server, sys, time
statuses = [int(each) for each in sys.argv[1].split(",")]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
        self.end_headers()
        self.wfile.write(b"no such field")
http.server.ThreadingHTTPServer.request_queue_size = 64
held = bytearray(50 << 20)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def server(statuses: str) -> Server:
    return Server("few lines", (sys.executable, "-c", _PROGRAM, statuses), "/", {}, "max_tokens")


def test_a_server_that_loads_is_asked_until_it_answers_and_its_peak_is_read() -> None:
    run = measure(server("503,503,200"))

    assert run.seconds > 0
    assert 50 << 20 < run.start_bytes <= run.load_bytes


def test_a_refusal_is_told_and_not_waited_for() -> None:
    with pytest.raises(TrivetError, match="few lines answers 400: no such field"):
        measure(server("400"))


def test_a_server_that_dies_is_told() -> None:
    with pytest.raises(TrivetError, match="few lines gave no token"):
        measure(server("none"))
