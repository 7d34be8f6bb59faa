"""What a client sees when there is more than the server can serve."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.system.serving import MODEL, CountingPlan, serving
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.plan import Limits


class OneAtATime(CountingPlan):
    limits = Limits(max_tokens=256, max_sequences=1, max_rows=1, max_context=512)


def ask(url, **changes):
    body = {"model": MODEL, "prompt": [5], "max_tokens": 40, "ignore_eos": True, **changes}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=30)


@pytest.mark.parametrize("stream", [False, True])
def test_past_the_bound_of_those_who_wait_the_answer_is_429_with_the_time_to_retry(stream):
    with serving(OneAtATime(step_s=0.02), targets=Targets(max_waiting=1)) as server, ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(lambda _: ask(server.url, stream=stream), range(6)))
        refused = [answer for answer in answers if answer.status_code == 429]
        metrics = httpx.get(f"{server.url}/metrics").text

    assert {200, 429} == {answer.status_code for answer in answers}
    assert all("overloaded" == answer.json()["error"]["code"] for answer in refused)
    assert all(1 <= int(answer.headers["retry-after"]) for answer in refused)
    name = f'trivet:requests_refused_total{{engine="0",model_name="{MODEL}",reason="queue"}}'
    assert f"{name} {len(refused)}.0" in metrics


def test_an_answer_not_complete_in_its_own_time_is_504_and_its_place_is_free():
    with serving(OneAtATime(step_s=0.02)) as server:
        late = ask(server.url, timeout_s=0.1, max_tokens=400)
        after = ask(server.url, max_tokens=1)

    assert (504, "deadline_exceeded") == (late.status_code, late.json()["error"]["code"])
    assert 200 == after.status_code


def test_terms_out_of_range_are_refused_by_name():
    with serving() as server:
        answer = ask(server.url, priority=5000)

    assert (400, "priority") == (answer.status_code, answer.json()["error"]["param"])
