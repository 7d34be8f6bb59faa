"""How the server begins and ends: ports, exposure, drain, signals."""

import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import MODEL, CountingPlan, serving

from trivet.base.errors import ResourceError, TrivetError
from trivet.serve.listening import check_exposure, listen

PROMPT = {"model": MODEL, "prompt": [300], "temperature": 0, "max_tokens": 40}
SCRIPT = """
from serving import CountingPlan, serving
with serving(CountingPlan(step_s=0.02)) as server:
    print(server.url, flush=True)
    server.wait_for_signal()
"""


def test_a_port_in_use_is_refused_with_a_free_one():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]

        with pytest.raises(ResourceError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            listen("127.0.0.1", port)

    free = int(caught.value.hint.split("--port ")[1].split(",")[0])
    listen("127.0.0.1", free).close()


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ResourceError, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "server.example"])
def test_other_machines_are_not_served_without_a_key(host):
    with pytest.raises(TrivetError, match="no API key is set"):
        check_exposure(host, has_api_key=False, allow_open=False)


@pytest.mark.parametrize("host, has_api_key, allow_open", [
    ("127.0.0.1", False, False), ("::1", False, False), ("localhost", False, False),
    ("0.0.0.0", True, False), ("0.0.0.0", False, True),
])  # fmt: skip
def test_the_rest_is_served(host, has_api_key, allow_open):
    check_exposure(host, has_api_key, allow_open)


def test_a_drain_finishes_what_runs_and_refuses_what_comes():
    with ThreadPoolExecutor() as pool, serving(CountingPlan(step_s=0.02)) as server, httpx.Client() as client:
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json={**PROMPT, "stream": True}) as running:
            lines = running.iter_lines()
            first = next(lines)
            stopping = pool.submit(server.stop)
            while client.get(f"{server.url}/ready").status_code == 200:
                pass
            refused = client.post(url, json=PROMPT)
            rest = list(lines)
        stopping.result()

    assert first.startswith("data: ")
    assert "data: [DONE]" == rest[-2]
    assert 40 == sum('"text":' in line for line in (first, *rest))
    assert (503, "1") == (refused.status_code, refused.headers["retry-after"])
    assert "shutting down" in refused.json()["error"]["message"]


def test_what_outlasts_the_drain_is_cut_short_with_an_error():
    with ThreadPoolExecutor() as pool, serving(CountingPlan(step_s=0.05), drain_s=0.2) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**PROMPT, "stream": True}) as running:
            lines = running.iter_lines()
            next(lines)
            stopping = pool.submit(server.stop)
            rest = [line for line in lines if line]
        stopping.result()

    assert '"code":"unavailable"' in rest[-2]
    assert "data: [DONE]" == rest[-1]


def test_a_stopped_server_leaves_its_port_and_no_thread():
    before = threading.active_count()
    with serving() as server:
        port = httpx.URL(server.url).port
        assert 200 == httpx.get(f"{server.url}/ready").status_code

    assert before == threading.active_count()
    listen("127.0.0.1", port).close()


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=Path(__file__).parent, stdout=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_the_process_exits_with_0(process, number):
    url = process.stdout.readline().strip()

    with httpx.stream("POST", f"{url}/v1/completions", json={**PROMPT, "stream": True}) as running:
        lines = running.iter_lines()
        next(lines)
        process.send_signal(number)
        rest = [line for line in lines if line]

    assert "data: [DONE]" == rest[-1]
    assert 0 == process.wait(timeout=10)


def test_a_second_signal_does_not_wait(process):
    url = process.stdout.readline().strip()

    with httpx.stream("POST", f"{url}/v1/completions", json={**PROMPT, "max_tokens": 400, "stream": True}) as running:
        lines = running.iter_lines()  # held, for a response whose reader is gone is closed
        next(lines)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)

        assert 0 == process.wait(timeout=4)
