"""The server as HTTP: what is not in OpenAI's client, or would not get past it."""

import asyncio
import json
import logging
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import MODEL, CountingPlan, counted, serving, until, value

from trivet.serve.protocol import CHAT_FIXED, COMPLETION_FIXED, ChatBody, CompletionBody
from trivet.serve.service import ServiceLimits
from trivet.serve.stream import EventStream

PROMPT = {"model": MODEL, "prompt": [300], "temperature": 0}
LONG = {**PROMPT, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def client():
    with serving() as server, httpx.Client(base_url=server.url) as client:
        yield client


def error(response):
    return response.json()["error"]


def test_malformed_json_is_a_400_with_the_place(client):
    response = client.post("/v1/completions", content=b'{"model": }')

    assert 400 == response.status_code
    assert "byte 10" in error(response)["message"]


NAMES = sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *CHAT_FIXED, *COMPLETION_FIXED})
EDGES = [-(2**63), -1, 0, 1, 2, 3, 511, 512, 2**31, 2**63, 10**400, "self", "1", {"role": "user", "content": "a"}]
LEAVES = st.none() | st.booleans() | st.floats(-3, 3) | st.text(max_size=9) | st.sampled_from(EDGES)
KEYS = st.sampled_from(["self", "role", "content", "type", "text", "1", "600", "include_usage"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@given(st.sampled_from(["/v1/chat/completions", "/v1/completions"]), st.dictionaries(
    st.sampled_from(NAMES), VALUES, max_size=4))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_whatever_is_asked_is_answered_or_refused_by_name(client, path, fields):
    prompt = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    response = client.post(path, content=json.dumps({"model": MODEL, **prompt, "max_tokens": 3, **fields}))

    assert response.status_code in (200, 400, 404, 429, 504)
    assert "engine_failed" not in response.text
    assert 200 == client.get("/health").status_code


def test_the_content_type_does_not_matter(client):
    headers = {"content-type": "application/x-www-form-urlencoded"}

    response = client.post("/v1/completions", content=b'{"model": "tiny", "prompt": "a"}', headers=headers)

    assert 200 == response.status_code


@pytest.mark.parametrize("method, path, status, code", [
    ("GET", "/v1/nothing", 404, "not_found"), ("GET", "/v1/models/other", 404, "model_not_found"),
    ("GET", "/v1/completions", 405, "method_not_allowed"), ("DELETE", "/v1/models", 405, "method_not_allowed"),
])  # fmt: skip
def test_every_refusal_is_an_openai_error(client, method, path, status, code):
    response = client.request(method, path)

    assert (status, code) == (response.status_code, error(response)["code"])
    assert {"message", "type", "param", "code"} == error(response).keys()


def test_a_refused_method_names_the_one_to_send(client):
    assert error(client.get("/v1/completions"))["message"].endswith("send POST")


def test_a_text_is_tokenized_and_back(client):
    tokens = client.post("/tokenize", json={"prompt": "the cat", "add_special_tokens": False}).json()
    text = client.post("/detokenize", json={"tokens": tokens["tokens"]}).json()

    assert (len(tokens["tokens"]), 512) == (tokens["count"], tokens["max_model_len"])
    assert {"prompt": "the cat"} == text


def test_a_conversation_is_tokenized_as_the_model_sees_it(client):
    messages = [{"role": "user", "content": "hello"}]

    tokens = client.post("/tokenize", json={"messages": messages}).json()["count"]
    usage = client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, "max_tokens": 1}).json()

    assert usage["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize("path, body", [
    ("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": []}), ("/detokenize", {"tokens": [512]}),
    ("/detokenize", {"tokens": [-1]}), ("/detokenize", {}),
])  # fmt: skip
def test_a_bad_tokenizer_request_is_a_400(client, path, body):
    assert 400 == client.post(path, json=body).status_code


def test_a_request_keeps_its_id(client):
    assert "abc-1" == client.get("/version", headers={"x-request-id": "abc-1"}).headers["x-request-id"]


@pytest.mark.parametrize("sent", [None, "has space", "x" * 200])
def test_a_request_without_a_usable_id_gets_one(client, sent):
    response = client.get("/version", headers={} if sent is None else {"x-request-id": sent})

    assert 32 == len(response.headers["x-request-id"])


def test_a_stream_is_marked_as_one_that_proxies_must_not_collect(client):
    headers = client.post("/v1/completions", json={**PROMPT, "stream": True}).headers

    assert headers["content-type"].startswith("text/event-stream")
    assert ("no", "no-cache, no-transform") == (headers["x-accel-buffering"], headers["cache-control"])


def test_metrics_bear_vllms_names(client):
    client.post("/v1/completions", json=PROMPT)

    text = client.get("/metrics").text

    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                 "generation_tokens_total", "request_success_total", "num_preemptions_total",
                 "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
                 "e2e_request_latency_seconds_bucket"):  # fmt: skip
        assert f"vllm:{name}{{" in text
    assert 'http_requests_total{handler="/v1/completions",method="POST",status="200"}' in text


def test_what_strangers_ask_for_makes_no_new_label(client):
    client.get("/wp-admin.php")

    text = client.get("/metrics").text

    assert 'handler="other"' in text
    assert "wp-admin" not in text


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_is_one_line_of_the_log_without_its_prompt(client, caplog, is_streamed):
    with caplog.at_level(logging.INFO, "trivet.serve"):
        body = {"model": MODEL, "prompt": "the secret", "max_tokens": 2, "temperature": 0, "stream": is_streamed}
        client.post("/v1/completions", json=body, headers={"x-request-id": "abc-2"})
        assert until(lambda: caplog.messages)

    (line,) = caplog.messages
    assert line.startswith("event=request request_id=abc-2 method=POST path=/v1/completions status=200 duration_ms=")
    assert "completion_tokens=2 ttft_ms=" in line
    assert "finish=length" in line
    assert "secret" not in line


def test_a_path_cannot_forge_a_line_of_the_log(client, caplog):
    with caplog.at_level(logging.INFO, "trivet.serve"):
        client.get("/x%0Aevent=forged")
        assert until(lambda: caplog.messages)

    (line,) = caplog.messages
    assert "\n" not in line
    assert r'path="/x\nevent=forged"' in line


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_frees_its_slots(is_streamed):
    with serving(CountingPlan(step_s=0.01)) as server, httpx.Client(base_url=server.url) as client:

        async def leave():
            async with httpx.AsyncClient(base_url=server.url) as leaver:
                asking = asyncio.ensure_future(leaver.post("/v1/completions", json={**LONG, "stream": is_streamed}))
                assert await asyncio.to_thread(until, lambda: value(client, "vllm:num_requests_running") == 1)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

        asyncio.run(leave())

        assert until(lambda: value(client, "vllm:num_requests_running") == 0)
        assert 400 > value(client, "vllm:generation_tokens_total")
        assert until(lambda: value(client, 'http_requests_total{handler="/v1/completions"') == 1)


def test_a_key_is_asked_of_everything_but_the_probes():
    with serving(api_key="secret") as server, httpx.Client(base_url=server.url) as client:
        for path in ("/v1/models", "/version", "/nothing"):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
                response = client.get(path, headers=headers)

                assert (401, "invalid_api_key") == (response.status_code, error(response)["code"])
        for path in ("/health", "/ready", "/metrics"):
            assert 200 == client.get(path).status_code
        assert 200 == client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code


@pytest.mark.parametrize("content", [b"x" * 2000, iter([b"x" * 600] * 3)])
def test_a_body_too_large_is_a_413(content):
    limits = ServiceLimits(max_body_bytes=1000)
    with serving(limits=limits) as server:
        response = httpx.post(f"{server.url}/v1/completions", content=content)

        assert (413, "body_too_large") == (response.status_code, error(response)["code"])


def test_a_body_too_slow_is_a_408():
    def slow():
        yield b"{"
        time.sleep(0.5)
        yield b"}"

    with serving(limits=ServiceLimits(read_s=0.1)) as server:
        response = httpx.post(f"{server.url}/v1/completions", content=slow())

        assert (408, "body_too_slow") == (response.status_code, error(response)["code"])


@pytest.mark.parametrize("is_streamed", [False, True])
def test_more_than_the_server_takes_on_is_a_429(is_streamed):
    limits = ServiceLimits(max_choices=2)
    with serving(limits=limits) as server, httpx.Client(base_url=server.url) as client:
        response = client.post("/v1/completions", json={**PROMPT, "n": 3, "stream": is_streamed})

        assert (429, "1") == (response.status_code, response.headers["retry-after"])
        assert "too_many_requests" == error(response)["code"]
        for _ in range(2):
            assert 200 == client.post("/v1/completions", json={**PROMPT, "n": 2}).status_code


def test_a_failed_step_is_a_500_that_shows_nothing_of_the_inside():
    with serving(CountingPlan(poison=300)) as server:
        response = httpx.post(f"{server.url}/v1/completions", json=PROMPT)

        assert (500, "engine_failed") == (response.status_code, error(response)["code"])
        assert "device" not in response.text


def test_a_failure_in_midstream_is_an_event_and_then_done():
    with serving(CountingPlan(poison=303)) as server:
        response = httpx.post(f"{server.url}/v1/completions", json={**PROMPT, "stream": True})

        events = response.text.split("\n\n")
        assert 200 == response.status_code
        assert counted(301, 3) == "".join(
            httpx.Response(200, text=e[6:]).json()["choices"][0]["text"] for e in events[:3]
        )
        assert '"code":"engine_failed"' in events[3]
        assert ["data: [DONE]", ""] == events[4:]


def test_a_failed_step_leaves_the_server_serving():
    with serving(CountingPlan(poison=300)) as server, httpx.Client(base_url=server.url) as client:
        client.post("/v1/completions", json=PROMPT)

        assert 200 == client.get("/health").status_code
        assert 200 == client.post("/v1/completions", json={**PROMPT, "prompt": [310]}).status_code


def test_while_loading_the_server_is_live_and_not_ready():
    with serving(is_loaded=False) as server, httpx.Client(base_url=server.url) as client:
        assert 200 == client.get("/health").status_code
        for method, path in (("GET", "/ready"), ("GET", "/v1/models"), ("POST", "/v1/completions")):
            response = client.request(method, path)

            assert (503, "1") == (response.status_code, response.headers["retry-after"])
            assert "still loading" in error(response)["message"]


def test_a_quiet_stream_says_that_it_is_alive():
    async def frames():
        await asyncio.sleep(0.25)
        yield b"data: x\n\n"

    sent = []

    async def run():
        async def send(message):
            sent.append(message)

        never = asyncio.Event()
        await EventStream(frames(), keep_alive_s=0.1)({}, never.wait, send)

    asyncio.run(run())

    assert [b": keep-alive\n\n", b": keep-alive\n\n", b"data: x\n\n", b""] == [part["body"] for part in sent[1:]]
