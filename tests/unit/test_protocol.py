import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import RequestError
from trivet.framework.engine.params import SamplingParams
from trivet.serve.protocol import (
    IGNORED,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    conversation,
    decode,
)

HELLO = [{"role": "user", "content": "hello"}]


def chat_body(**fields):
    return decode(json.dumps({"model": "m", "messages": HELLO, **fields}).encode(), ChatBody)


def completion_body(**fields):
    return decode(json.dumps({"model": "m", "prompt": "hello", **fields}).encode(), CompletionBody)


def turns(*messages):
    return conversation(chat_body(messages=list(messages)).messages)


@pytest.mark.parametrize("field", [
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias", "stop", "stop_token_ids", "seed", "max_tokens", "min_tokens", "n", "ignore_eos", "stream",
    "stream_options", "max_completion_tokens", "logprobs", "top_logprobs", "tools", "response_format",
])  # fmt: skip
def test_null_means_the_default(field):
    assert SamplingParams() == chat_body(**{field: None}).sampling()


def test_every_parameter_reaches_the_engine():
    body = chat_body(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, logit_bias={"5": -1.5}, stop=["a", "b"], stop_token_ids=[3], seed=11,
        max_completion_tokens=9, min_tokens=2, n=3, ignore_eos=True, logprobs=True, top_logprobs=4,
    )  # fmt: skip

    expected = SamplingParams(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, logit_bias={5: -1.5}, stop=("a", "b"), stop_token_ids=(3,), seed=11,
        max_tokens=9, min_tokens=2, n=3, ignore_eos=True, logprobs=4,
    )  # fmt: skip
    assert expected == body.sampling()


def test_a_salt_reaches_the_cache_and_is_bounded():
    assert "mine" == chat_body(cache_salt="mine").salt
    assert "" == chat_body().salt
    for salt in ("", "a" * 1025):
        with pytest.raises(RequestError, match=f"cache_salt has {len(salt)} characters, wanted 1 to 1024"):
            _ = chat_body(cache_salt=salt).salt


def test_a_chat_without_a_limit_runs_to_the_end_of_the_context():
    assert chat_body().sampling().max_tokens is None


def test_a_completion_without_a_limit_ends_after_sixteen_tokens():
    assert completion_body().sampling().max_tokens == 16


@pytest.mark.parametrize("top_k", [-1, 0])
def test_the_ways_clients_write_no_top_k_mean_none(top_k):
    assert chat_body(top_k=top_k).sampling().top_k is None


def test_logprobs_alone_asks_for_the_chosen_token_only():
    assert chat_body(logprobs=True).sampling().logprobs == 0


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_only_labels_a_request_is_ignored(name):
    assert SamplingParams() == chat_body(**{name: {"any": "thing"}}).sampling()


@pytest.mark.parametrize("fields", [
    {"tools": []}, {"tool_choice": "auto"}, {"response_format": {"type": "text"}}, {"modalities": ["text"]},
])  # fmt: skip
def test_an_unserved_parameter_is_taken_where_it_asks_for_nothing(fields):
    assert SamplingParams() == chat_body(**fields).sampling()


@pytest.mark.parametrize("name, value, reason", [
    ("tools", [{"type": "function"}], "does not call tools"),
    ("tool_choice", "required", "does not call tools"),
    ("functions", [{"name": "f"}], "does not call tools"),
    ("response_format", {"type": "json_object"}, "not constrained"),
    ("modalities", ["text", "audio"], "text only"),
    ("audio", {"voice": "x"}, "text only"),
    ("web_search_options", {}, "does not search"),
])  # fmt: skip
def test_an_unserved_parameter_is_refused_with_the_reason(name, value, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        chat_body(**{name: value})

    assert name == caught.value.parameter


@pytest.mark.parametrize("name, value, reason", [
    ("echo", True, "not returned"), ("suffix", "end", "at its end only"), ("best_of", 3, "not ranked"),
])  # fmt: skip
def test_an_unserved_parameter_of_completions_is_refused_with_the_reason(name, value, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        completion_body(**{name: value}).sampling()

    assert name == caught.value.parameter


def test_an_unknown_parameter_is_refused_with_the_nearest_known():
    with pytest.raises(RequestError, match="temprature is not a parameter") as caught:
        chat_body(temprature=1)

    assert "did you mean temperature?" == caught.value.hint


@pytest.mark.parametrize("fields, parameter", [
    ({"temperature": "1"}, "temperature"), ({"max_tokens": 5.5}, "max_tokens"), ({"n": True}, "n"),
    ({"stream": "yes"}, "stream"), ({"stop": [1]}, "stop[0]"), ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"messages": "hello"}, "messages"), ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{**HELLO[0], "mood": 1}]}, "messages[0].mood"),
    ({"stream_options": {"include_usag": True}}, "stream_options.include_usag"), ({"model": None}, "model"),
])  # fmt: skip
def test_a_wrong_type_is_refused_by_its_path(fields, parameter):
    with pytest.raises(RequestError) as caught:
        chat_body(**fields)

    assert parameter == caught.value.parameter


@pytest.mark.parametrize("fields, parameter", [
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 3, "max_tokens": 4}, "max_tokens"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 1025}, "stop"),
])  # fmt: skip
def test_parameters_that_make_no_sense_are_refused(fields, parameter):
    with pytest.raises(RequestError) as caught:
        chat_body(**fields).sampling()

    assert parameter == caught.value.parameter


@pytest.mark.parametrize("raw, message", [
    (b"", "not valid JSON"), (b'{"model": }', "byte 10"), (b'{"model": "\xff"}', "not valid JSON"),
    (b'{"n": NaN}', "not valid JSON"), (b"[1]", "an array"), (b"null", "null"), (b"[" * 100_000, "too deeply"),
])  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(raw, message):
    with pytest.raises(RequestError, match=message):
        decode(raw, ChatBody)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary(max_size=200) | JSON.map(json.dumps).map(str.encode))
def test_any_bytes_that_are_no_body_are_a_request_error(raw):
    with pytest.raises(RequestError):
        decode(raw, ChatBody)


@given(st.sampled_from(ChatBody.__struct_fields__), JSON)
def test_any_value_of_a_parameter_is_taken_or_refused(name, value):
    with contextlib.suppress(RequestError):
        body = chat_body(**{name: value})

        assert isinstance(body.sampling(), SamplingParams)
        assert conversation(body.messages)


NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
           "seed", "max_tokens", "min_tokens", "n", "logprobs", "priority", "timeout_s"]  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400, "1e400"], ids=["large", "small", "float"])
def test_a_number_beyond_all_is_refused_by_name(name, number):
    with pytest.raises(RequestError) as caught:
        body = decode(b'{"model": "m", "prompt": "a", "%b": %b}' % (name.encode(), number.encode()), CompletionBody)
        body.sampling().validated(100)
        body.terms.validated()

    assert caught.value.parameter in (name, None)  # None: where it is no number of JSON's reader either


@pytest.mark.parametrize("text", [r"\ud800", r"\udc00", r"\ud800x", r"\ud83d\ud83d"])
def test_half_a_character_of_utf_16_is_no_text(text):
    for name in ("prompt", "user", "cache_salt", "stop"):
        with pytest.raises(RequestError, match="not valid JSON"):
            decode(b'{"model": "m", "%b": "%b"}' % (name.encode(), text.encode()), CompletionBody)


def test_text_parts_become_lines_of_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert [{"role": "user", "content": "a\nb"}] == turns({"role": "user", "content": parts})


def test_the_developer_speaks_as_the_system():
    assert [{"role": "system", "content": "be brief"}] == turns({"role": "developer", "content": "be brief"})


def test_an_answer_may_be_sent_back_as_it_was_received():
    answer = {"role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None,
              "function_call": None, "tool_calls": None}  # fmt: skip

    assert [{"role": "assistant", "content": "hi"}] == turns(answer)


@pytest.mark.parametrize("message, parameter", [
    ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[0].content[0]"),
    ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0]"),
    ({"role": "user"}, "messages[0].content"),
    ({"role": "tool", "content": "3", "tool_call_id": "x"}, "messages[0]"),
    ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[0]"),
])  # fmt: skip
def test_a_message_that_is_no_text_is_refused(message, parameter):
    with pytest.raises(RequestError) as caught:
        turns(message)

    assert parameter == caught.value.parameter


def test_no_messages_are_refused():
    with pytest.raises(RequestError, match="messages is empty"):
        turns()


@pytest.mark.parametrize("name", ["messages", "chat_template", "tools", "add_generation_prompt"])
def test_a_request_cannot_bend_the_template(name):
    with pytest.raises(RequestError, match=name):
        chat_body(chat_template_kwargs={name: "x"}).template_options()


def test_template_variables_are_passed_on():
    body = chat_body(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")

    assert {"enable_thinking": False, "reasoning_effort": "low"} == body.template_options()


@pytest.mark.parametrize("prompt, expected", [
    ("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]),
])  # fmt: skip
def test_a_prompt_comes_in_four_kinds(prompt, expected):
    assert expected == completion_body(prompt=prompt).prompts()


@pytest.mark.parametrize("prompt", ["", [], ["a", ""], [[]], [1, "a"], [1.5], [True], [["a"]], [None]])
def test_a_prompt_that_is_none_of_them_is_refused(prompt):
    with pytest.raises(RequestError, match="prompt"):
        completion_body(prompt=prompt).prompts()


def test_too_many_choices_in_all_are_refused():
    with pytest.raises(RequestError, match="130 choices, at most 128"):
        completion_body(prompt=["a"] * 65, n=2).prompts()


def test_the_tokenizer_bodies_are_as_strict():
    for raw, kind in ((b'{"promt": "a"}', TokenizeBody), (b'{"tokens": ["a"]}', DetokenizeBody)):
        with pytest.raises(RequestError):
            decode(raw, kind)
