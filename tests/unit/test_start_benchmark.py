"""benchmarks/start.py, against servers and programs that are a few lines."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.start import Run, Server, Way, judge, measure, serve, write
from trivet.base.errors import TrivetError

_PROGRAM = """
import http.server, json, sys, time
statuses = [int(each) for each in sys.argv[1].split(",")]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
        self.end_headers()
        self.wfile.write(json.dumps({"text": " Paris"}).encode())
http.server.ThreadingHTTPServer.request_queue_size = 64
held = bytearray(50 << 20)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
print("now I serve", file=sys.stderr, flush=True)
server.serve_forever()
"""


def server(statuses: str) -> Server:
    command = (sys.executable, "-c", _PROGRAM, statuses)
    return Server("few lines", command, b"I serve", "/", "max_tokens", lambda said: said["text"])


def test_a_server_is_asked_until_it_answers_and_its_peak_is_read() -> None:
    run = serve(server("503,503,200"))

    assert "Paris" == run.token
    assert run.seconds > 0
    assert run.load_bytes is not None
    assert 50 << 20 < run.start_bytes <= run.load_bytes


def test_a_refusal_is_told_and_not_waited_for() -> None:
    with pytest.raises(TrivetError, match="few lines answers 400"):
        serve(server("400"))


def test_a_server_that_dies_is_told_with_its_last_words() -> None:
    with pytest.raises(TrivetError, match=r"(?s)few lines ended before it served: .*invalid literal"):
        serve(server("none"))


def test_a_server_that_does_not_say_that_it_serves_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.start._TIMEOUT_S", 0.1)
    silent = replace(server("200"), command=(sys.executable, "-c", "import time; time.sleep(600)"))

    with pytest.raises(TrivetError, match="few lines did not say b'I serve'"):
        serve(silent)


def test_a_program_is_timed_to_its_token_and_its_peak_is_read_while_it_lives() -> None:
    program = "import sys; held = bytearray(50 << 20); print('Paris', flush=True); sys.stdin.read()"
    run = write("few lines", [sys.executable, "-c", program], {})

    assert "Paris" == run.token
    assert 50 << 20 < run.start_bytes
    assert run.load_bytes is None


def test_a_program_that_writes_nothing_is_told_with_its_last_words() -> None:
    with pytest.raises(TrivetError, match="few lines wrote no token: no weights"):
        write("few lines", [sys.executable, "-c", "import sys; sys.exit('no weights')"], {})


def test_ways_take_turns_cold_and_warm_and_are_judged_beside_ours(tmp_path: Path) -> None:
    started: list[str] = []

    def way(name: str, token: str, factor: float, load_bytes: int | None) -> Way:
        file = tmp_path / name
        file.write_bytes(b"weights")

        def start() -> Run:
            started.append(name)
            return Run(factor * len(started), token, 100, load_bytes)

        return Way(name, (file,), start)

    measured = measure([way("ours", "a", 1, 200), way("theirs", "b", 0, None)], 2)
    rows = list(judge(measured["warm"]))

    assert ["ours", "theirs"] * 5 == started
    assert {"cold", "warm"} == measured.keys()
    assert [(1, True, 200), (0, False, None)] == [(row["ratio"], row["is_ours"], row["load_bytes"]) for row in rows]
    assert (5, 9, 2) == (rows[0]["low"], rows[0]["high"], rows[0]["repeats"])
