from functools import partial

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.unit.pretend_plan import PIECES, PretendPlan, PretendTokenizer, chosen, logits_after
from trivet.base.errors import RequestError
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.metrics import EngineMetrics
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Request
from trivet.framework.graph.plan import Limits

ENDLESS = {"ignore_eos": True}


def request(request_id="a", prompt=(3, 4, 5), seed=1, **params):
    return Request(request_id, tuple(prompt), SamplingParams(**params), seed)


def engine_of(plan=None, tokenizer=None, **options):
    return Engine(plan or PretendPlan(), tokenizer, **options)


def value_of(metrics, name, labels):
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry.get_sample_value(name, labels)


def serve(engine, *requests):
    """All deltas of these requests, by (request, index)."""
    for each in requests:
        engine.add(each)
    answers = {(each.request_id, index): [] for each in requests for index in range(each.params.n)}
    while engine.has_work:
        for delta in engine.step():
            answers[delta.request_id, delta.index].append(delta)
    return answers


def tokens_of(deltas):
    return [token for delta in deltas for token in delta.token_ids]


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def test_an_answer_is_what_a_plain_loop_over_logits_and_sampler_gives():
    asked = request(max_tokens=20, logprobs=3, temperature=0.8, top_p=0.95, frequency_penalty=0.5)
    tokens, expected = list(asked.prompt), []
    for _ in range(20):
        expected.append(chosen(logits_after(tokens, 23), asked.params, tokens, num_prompt=3, seed=1).logprob)
        tokens.append(expected[-1].token_id)
    deltas = serve(engine_of(), asked)["a", 0]

    assert expected == [logprob for delta in deltas for logprob in delta.logprobs]
    assert tokens[3:] == tokens_of(deltas)


def test_a_long_prompt_is_prefilled_in_chunks_beside_running_decodes():
    plan = PretendPlan()
    engine = engine_of(plan, max_step_tokens=8)
    serve(engine, request("a", max_tokens=10), request("b", prompt=range(3, 23), max_tokens=3))

    assert all(len(batch.tokens) <= 8 for batch in plan.batches)
    assert [3 + 5, 1 + 7, 1 + 7, 1 + 1] == [len(batch.tokens) for batch in plan.batches[:4]]


def test_preemption_does_not_change_the_answer():
    requests = [request(name, prompt=(5, 6, 7), max_tokens=12, seed=ord(name), **ENDLESS) for name in "abcd"]
    roomy = serve(engine_of(PretendPlan(num_slots=32)), *requests)
    plan = PretendPlan(num_slots=5)
    metrics = EngineMetrics("tiny")
    tight = serve(engine_of(plan, observer=metrics), *requests)

    assert value_of(metrics, "vllm:num_preemptions_total", LABELS) > 0
    assert {key: tokens_of(deltas) for key, deltas in roomy.items()} == {
        key: tokens_of(deltas) for key, deltas in tight.items()
    }


LABELS = {"model_name": "tiny", "engine": "0"}


def test_the_end_of_text_token_finishes_with_stop_and_has_no_text():
    asked = request(temperature=0, logit_bias={0: 100.0})
    (delta,) = serve(engine_of(tokenizer=PretendTokenizer()), asked)["a", 0]

    assert ("stop", 0, (0,), "") == (delta.finish_reason, delta.stop_reason, delta.token_ids, delta.text)


@pytest.mark.parametrize("beyond", [23, 2**40, -1])
def test_an_end_of_text_token_that_the_model_does_not_have_is_nobody_s_end(beyond):
    class Padded(PretendTokenizer):
        eos_ids = frozenset({0, beyond})

    asked = request(temperature=0, logit_bias={0: 100.0, 4: 50.0}, min_tokens=2)
    deltas = serve(engine_of(tokenizer=Padded()), asked)["a", 0]

    assert [4, 4, 0] == tokens_of(deltas)


def test_ignore_eos_goes_on_to_max_tokens():
    asked = request(temperature=0, logit_bias={0: 100.0}, ignore_eos=True, max_tokens=4)
    deltas = serve(engine_of(tokenizer=PretendTokenizer()), asked)["a", 0]

    assert [0] * 4 == tokens_of(deltas)
    assert "length" == deltas[-1].finish_reason


def test_min_tokens_holds_off_stop_tokens_and_stop_strings():
    asked = request(temperature=0, logit_bias={0: 100.0, 4: 50.0}, stop=("a",), min_tokens=3)
    deltas = serve(engine_of(tokenizer=PretendTokenizer()), asked)["a", 0]

    assert [4, 4, 4, 0] == tokens_of(deltas)
    assert "aaa" == text_of(deltas)


def test_a_stop_token_finishes_and_says_which():
    asked = request(temperature=0, logit_bias={9: 100.0}, stop_token_ids=(9, 10))
    deltas = serve(engine_of(), asked)["a", 0]

    assert ("stop", 9) == (deltas[-1].finish_reason, deltas[-1].stop_reason)


def test_text_ends_before_a_stop_string_and_no_token_follows():
    plain = serve(engine_of(tokenizer=PretendTokenizer()), request(max_tokens=30, seed=4, **ENDLESS))["a", 0]
    text = text_of(plain)
    stop = text[9:12]
    cut = serve(engine_of(tokenizer=PretendTokenizer()), request(max_tokens=30, seed=4, stop=(stop,), **ENDLESS))[
        "a", 0
    ]

    assert text[: text.index(stop)] == text_of(cut)
    assert ("stop", stop) == (cut[-1].finish_reason, cut[-1].stop_reason)
    assert tokens_of(plain)[: len(tokens_of(cut))] == tokens_of(cut)


def test_text_held_back_comes_out_when_the_answer_ends():
    biased = {"temperature": 0, "logit_bias": {1: 100.0}}  # token 1 is half of a character
    (delta,) = serve(engine_of(tokenizer=PretendTokenizer()), request(max_tokens=1, **biased))["a", 0]
    assert "�" == delta.text

    held = request(temperature=0, logit_bias={4: 100.0}, max_tokens=2, stop=("aaa",))
    assert ["", "aa"] == [delta.text for delta in serve(engine_of(tokenizer=PretendTokenizer()), held)["a", 0]]


def test_streamed_text_is_the_text_of_the_tokens():
    deltas = serve(engine_of(tokenizer=PretendTokenizer()), request(max_tokens=50, **ENDLESS))["a", 0]

    assert b"".join(PIECES[token] for token in tokens_of(deltas)).decode(errors="replace") == text_of(deltas)


def test_every_choice_of_a_request_is_drawn_for_itself_and_again_the_same():
    asked = request(n=3, max_tokens=10, **ENDLESS)
    first, again = serve(engine_of(), asked), serve(engine_of(), asked)

    assert 3 == len({tuple(tokens_of(deltas)) for deltas in first.values()})
    assert first == again


def test_a_restart_from_a_partial_answer_goes_on_with_the_same_draws():
    whole = tokens_of(serve(engine_of(), request(max_tokens=12, **ENDLESS))["a", 0])
    rest = tokens_of(serve(engine_of(), request(prompt=(3, 4, 5, *whole[:5]), max_tokens=7, **ENDLESS))["a", 0])

    assert whole[5:] == rest


def test_an_answer_ends_with_the_context():
    plan = PretendPlan(limits=Limits(max_tokens=8, max_sequences=2, max_rows=2, max_context=10))
    deltas = serve(engine_of(plan), request(max_tokens=1000))["a", 0]

    assert 7 == len(tokens_of(deltas))
    assert ("length", 3, 7) == (deltas[-1].finish_reason, deltas[-1].num_prompt_tokens, deltas[-1].num_generated_tokens)


def test_an_answer_ends_with_the_pool_where_that_is_smaller():
    deltas = serve(engine_of(PretendPlan(num_slots=2, slot_tokens=4)), request())["a", 0]

    assert 5 == len(tokens_of(deltas))
    assert "length" == deltas[-1].finish_reason


@pytest.mark.parametrize(
    "plan, asked, words",
    [
        (PretendPlan(), request(prompt=()), "prompt is empty"),
        (PretendPlan(), request(prompt=(3,) * 64), "prompt has 64 tokens; .* context of 64"),
        (PretendPlan(num_slots=2), request(prompt=(3,) * 8), "prompt has 8 tokens; .* KV pool of 8"),
        (PretendPlan(), request(prompt=(3, 23)), "outside 0 to 22"),
        (PretendPlan(), request(prompt=(3, 2**40)), "no token id"),
        (PretendPlan(), request(prompt=(3, 1.0)), "no token id"),
        (PretendPlan(), request(min_tokens=1, stop_token_ids=tuple(range(23))), "leaves no token to choose"),
        (PretendPlan(), request(stop=("x",)), "stop needs a tokenizer"),
        (PretendPlan(), request(top_p=2), "top_p is 2"),
    ],
)
def test_what_can_never_be_served_is_refused_at_the_door(plan, asked, words):
    engine = engine_of(plan)
    with pytest.raises(RequestError, match=words) as caught:
        engine.add(asked)

    assert caught.value.parameter is not None
    assert not engine.has_work


def test_the_longest_prompt_that_fits_is_served():
    assert 1 == len(serve(engine_of(), request(prompt=(3,) * 63))["a", 0])


def test_an_id_in_use_is_refused_and_free_again_after():
    engine = engine_of()
    engine.add(request())
    with pytest.raises(RequestError, match="request id a is in use"):
        engine.add(request())
    engine.abort("a")

    engine.add(request())


def test_abort_frees_slots_at_once_and_says_so():
    engine = engine_of()
    engine.add(request(n=2))
    engine.add(request("b"))
    engine.step()

    assert [("a", 0, "abort"), ("a", 1, "abort")] == [
        (delta.request_id, delta.index, delta.finish_reason) for delta in engine.abort("a")
    ]
    assert [] == engine.abort("a")
    engine.abort("b")
    engine.check()  # idle: the pool is whole


def test_a_step_that_fails_finishes_what_runs_with_error_and_serves_what_waits():
    plan = PretendPlan(num_slots=4)
    plan.fail_at = 2
    answers = serve(engine_of(plan), request("a", max_tokens=6), request("b", prompt=(3,) * 15, max_tokens=1))

    assert ["error"] == [delta.finish_reason for delta in answers["a", 0] if delta.finish_reason]
    assert ["length"] == [delta.finish_reason for delta in answers["b", 0]]


def test_logits_that_are_not_finite_finish_that_sequence_alone():
    class PoisonedPlan(PretendPlan):
        def run(self, batch, arriving=()):
            logits = super().run(batch, arriving)
            logits[0] = np.nan
            return logits

    answers = serve(engine_of(PoisonedPlan()), request("a", max_tokens=2), request("b", max_tokens=1))

    assert "error" == answers["a", 0][-1].finish_reason
    assert "length" == answers["b", 0][-1].finish_reason


def test_metrics_count_what_happened():
    ticks = iter(range(1000))
    metrics = EngineMetrics("tiny")
    engine = engine_of(observer=metrics, clock=lambda: next(ticks))
    serve(engine, request("a", max_tokens=3), request("b", n=2, max_tokens=1))
    engine.add(request("c"))
    value = partial(value_of, metrics)

    assert 1 == value("vllm:num_requests_waiting", LABELS)
    engine.abort("c")
    assert 0 == value("vllm:num_requests_waiting", LABELS)
    assert 0 == value("vllm:num_requests_running", LABELS)
    assert 0 == value("vllm:kv_cache_usage_perc", LABELS)
    assert 9 == value("vllm:prompt_tokens_total", LABELS)
    assert 5 == value("vllm:generation_tokens_total", LABELS)
    assert 3 == value("vllm:request_success_total", {**LABELS, "finished_reason": "length"})
    assert 1 == value("vllm:request_success_total", {**LABELS, "finished_reason": "abort"})
    assert 3 == value("vllm:time_to_first_token_seconds_count", LABELS)
    assert 2 == value("vllm:inter_token_latency_seconds_count", LABELS)
    assert 4 == value("vllm:e2e_request_latency_seconds_count", LABELS)
    assert 3 == value("vllm:request_decode_time_seconds_count", LABELS)
    assert 3 == value("vllm:iteration_tokens_total_count", LABELS)
