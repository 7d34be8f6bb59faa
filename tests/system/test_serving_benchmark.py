"""The measurement of servers: its traffic, its client against a server whose answers are known, and what it starts."""

import asyncio
import sys

import numpy as np
import pytest

from benchmarks.serving import _median_error, _step_errors
from tests.system.serving import CountingPlan, serving
from trivet.base.errors import TrivetError
from trivet.framework.engine.replay.trace import Arrival
from trivet.serve.bench.client import ask_all
from trivet.serve.bench.peers.free_port import free_port
from trivet.serve.bench.peers.server_process import ServerProcess, Start
from trivet.serve.bench.traffic import CHAT_PROMPT, LONG_PROMPT, prompts_of, traffic


def test_traffic_is_the_same_for_a_seed_and_has_the_rate_and_the_share_that_were_asked_for():
    arrivals = traffic(4000, 2.0, 0.25, seed=1)
    long = [each for each in arrivals if each.num_prompt >= LONG_PROMPT[0]]

    assert traffic(4000, 2.0, 0.25, seed=1) == arrivals
    assert traffic(4000, 2.0, 0.25, seed=2) != arrivals
    assert pytest.approx(2000, rel=0.1) == arrivals[-1].at_s
    assert pytest.approx(0.25, rel=0.1) == len(long) / 4000
    assert all(CHAT_PROMPT[0] <= each.num_prompt < LONG_PROMPT[1] for each in arrivals)
    assert [each.num_prompt for each in arrivals[:9]] == [len(prompt) for prompt in prompts_of(arrivals[:9], 512, 1)]


def test_the_client_hears_every_token_of_everyone_and_why_one_was_refused():
    arrivals = [Arrival(0.0, 3, 5), Arrival(0.01, 1, 9), Arrival(0.02, 600, 4)]  # more than the context of 512
    prompts = [[300, 301, 302], [310], [320] * 600]
    with serving(CountingPlan()) as server:
        heard = asyncio.run(ask_all(int(server.url.rsplit(":", 1)[1]), "tiny", arrivals, prompts))

    assert [5, 9, 0] == [len(each.pieces_s) for each in heard]
    assert [None, None] == [each.failure for each in heard[:2]]
    assert heard[2].failure.startswith("status 400: ") and "too short" in heard[2].failure
    assert all(each.ttft_s > 0 and all(gap >= 0 for gap in each.gaps_s) for each in heard[:2])
    assert heard[0].sent_s <= heard[1].sent_s - 0.01


def test_a_server_runs_until_it_is_told_to_end(tmp_path):
    (tmp_path / "said").write_text("hello")
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with ServerProcess("files", Start(command), "/", port) as server:
        assert "hello" == server.get("/said")
    with pytest.raises(OSError):
        server.get("/")


def test_a_server_that_does_not_start_is_an_error_with_its_own_words():
    with pytest.raises(TrivetError, match="stand-in ended before it was ready") as raised:
        ServerProcess("stand-in", Start([sys.executable, "-c", "import sys; sys.exit('no weights')"]), "/", free_port())
    assert "no weights" in raised.value.hint
    with pytest.raises(TrivetError, match="No such file"):
        ServerProcess("absent", Start(["/no/such/program"]), "/", free_port())


def test_the_median_error_is_that_of_the_steps_between_two_looks():
    before = {0.01: 5, 0.1: 5, 0.2: 9, float("inf"): 9}
    after = {0.01: 5, 0.1: 9, 0.2: 25, float("inf"): 29}

    assert pytest.approx(float(np.interp(10, [0, 0, 4, 16], [0, 0.01, 0.1, 0.2]))) == _median_error(before, after)
    lines = [
        f'trivet:step_prediction_error_ratio_bucket{{lane="{lane}",le="{edge}"}} {count}'
        for lane, edge, count in (("both", "0.1", 2), ("both", "+Inf", 3), ("decode", "0.1", 1), ("decode", "+Inf", 1))
    ]
    assert {0.1: 3, float("inf"): 4} == _step_errors("\n".join([*lines, ""]))
