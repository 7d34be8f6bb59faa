import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.engine.sampler import TokenLogprob
from trivet.serve.frames import ChatWriter, Choice, CompletionWriter, Heading, Usage

HEADING = Heading("id-1", 1700000000, 'a "model"')
WRITERS = [ChatWriter, CompletionWriter]


class LetterTokens:
    """Token 0 is "a", 1 is "b", …; token 26 is half a character."""

    def token_bytes(self, token_id):
        return b"\xc3" if token_id == 26 else bytes([97 + token_id])

    def token_text(self, token_id):
        return self.token_bytes(token_id).decode(errors="replace")


def writer(kind, has_usage=False):
    return kind(HEADING, LetterTokens(), has_usage)


def events(frames):
    """The JSON of each frame."""
    lines = frames.decode().split("\n\n")
    assert "" == lines[-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def only_choice(frames):
    (event,) = events(frames)
    (choice,) = event["choices"]
    return choice


def test_a_chat_choice_opens_with_its_role_once():
    chat = writer(ChatWriter)

    first, second = events(chat.frame(0, "a", None, None)), events(chat.frame(0, "b", None, None))

    assert [{"role": "assistant", "content": "", "refusal": None}, {"content": "a"}] == [
        event["choices"][0]["delta"] for event in first
    ]
    assert [{"content": "b"}] == [event["choices"][0]["delta"] for event in second]


def test_a_chat_choice_ends_with_an_empty_delta_and_the_reason():
    chat = writer(ChatWriter)
    chat.frame(0, "a", None, None)

    text, finish = events(chat.frame(0, "b", None, "length"))

    assert {"index": 0, "delta": {"content": "b"}, "logprobs": None, "finish_reason": None} == text["choices"][0]
    assert {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"} == finish["choices"][0]


def test_the_last_text_of_a_completion_carries_the_reason():
    expected = {"index": 3, "text": "a", "logprobs": None, "finish_reason": "stop"}

    assert expected == only_choice(writer(CompletionWriter).frame(3, "a", None, "stop"))


@pytest.mark.parametrize("kind", WRITERS)
def test_text_held_back_makes_no_frame(kind):
    answer = writer(kind)
    answer.frame(0, "a", None, None)

    assert b"" == answer.frame(0, "", None, None)


@pytest.mark.parametrize("kind, name", [(ChatWriter, "chat.completion.chunk"), (CompletionWriter, "text_completion")])
def test_every_frame_carries_the_heading(kind, name):
    for event in events(writer(kind).frame(0, "a", None, "stop")):
        heading = (event["id"], event["object"], event["created"], event["model"])

        assert ("id-1", name, 1700000000, 'a "model"') == heading


@pytest.mark.parametrize("kind", WRITERS)
@given(text=st.text(min_size=1))
def test_any_text_arrives_as_it_left(kind, text):
    choice = events(writer(kind).frame(0, text, None, None))[-1]["choices"][0]

    assert text == (choice["delta"]["content"] if kind is ChatWriter else choice["text"])


@pytest.mark.parametrize("kind", WRITERS)
@given(text=st.text())
def test_no_text_can_break_a_frame(kind, text):
    frames = writer(kind).frame(0, text, None, "stop")

    assert all(line.startswith(b"data: {") for line in frames.splitlines() if line)


@pytest.mark.parametrize("kind", WRITERS)
def test_usage_is_null_in_every_frame_until_the_last(kind):
    answer = writer(kind, has_usage=True)

    assert all(event["usage"] is None for event in events(answer.frame(0, "a", None, "stop")))
    (last,) = events(answer.usage_frame(Usage(3, 4)))
    assert ([], {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}) == (last["choices"], last["usage"])


@pytest.mark.parametrize("kind", WRITERS)
def test_usage_is_not_mentioned_unless_asked_for(kind):
    assert all("usage" not in event for event in events(writer(kind).frame(0, "a", None, "stop")))


@pytest.mark.parametrize("kind", WRITERS)
def test_running_usage_is_in_every_frame(kind):
    frames = writer(kind, has_usage=True).frame(0, "a", None, "stop", Usage(3, 1))

    assert all(4 == event["usage"]["total_tokens"] for event in events(frames))


def test_chat_logprobs_are_openais():
    tokens = [TokenLogprob(1, -0.5, ((1, -0.5), (26, -1.5)))]

    expected = {
        "content": [
            {
                "token": "b",
                "logprob": -0.5,
                "bytes": [98],
                "top_logprobs": [
                    {"token": "b", "logprob": -0.5, "bytes": [98]},
                    {"token": "\ufffd", "logprob": -1.5, "bytes": [195]},
                ],
            }
        ],
        "refusal": None,
    }
    assert expected == events(writer(ChatWriter).frame(0, "b", tokens, None))[-1]["choices"][0]["logprobs"]
    (choice,) = json.loads(writer(ChatWriter).body([Choice(0, ["b"], tokens, "stop")], Usage(1, 1), True))["choices"]
    assert expected == choice["logprobs"]


def test_completion_logprobs_are_openais_and_the_chosen_token_is_always_among_them():
    tokens = [TokenLogprob(0, -0.5, ((0, -0.5),)), TokenLogprob(2, -3.0, ((1, -0.25),))]

    expected = {
        "tokens": ["a", "c"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{"a": -0.5}, {"b": -0.25, "c": -3.0}],
        "text_offset": [0, 1],
    }
    (choice,) = json.loads(writer(CompletionWriter).body([Choice(0, ["ac"], tokens, "stop")], Usage(1, 2), True))[
        "choices"
    ]
    assert expected == choice["logprobs"]


def test_text_offsets_run_on_from_frame_to_frame_for_each_choice():
    answer = writer(CompletionWriter)
    tokens = [TokenLogprob(0, -0.5, ())]

    got = [only_choice(answer.frame(index, "a", tokens, None))["logprobs"]["text_offset"] for index in (0, 1, 0)]

    assert [[0], [0], [1]] == got


@pytest.mark.parametrize("kind", WRITERS)
def test_an_impossible_token_has_a_finite_logprob(kind):
    tokens = [TokenLogprob(0, float("-inf"), ())]

    logprobs = events(writer(kind).frame(0, "a", tokens, None))[-1]["choices"][0]["logprobs"]

    assert -9999.0 == (logprobs["content"][0]["logprob"] if kind is ChatWriter else logprobs["token_logprobs"][0])


def test_logprobs_of_held_back_text_are_framed_at_once():
    tokens = [TokenLogprob(0, -0.5, ())]

    assert "" == only_choice(writer(CompletionWriter).frame(0, "", tokens, None))["text"]


def test_a_chat_body_is_openais():
    body = json.loads(writer(ChatWriter).body([Choice(0, ["a", "b"], [], "stop")], Usage(2, 2), False))

    assert "chat.completion" == body["object"]
    assert [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ab", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ] == body["choices"]
    assert {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4} == body["usage"]


def test_a_completion_body_is_openais():
    body = json.loads(writer(CompletionWriter).body([Choice(0, ["a"], [], "length")], Usage(2, 1), False))

    assert "text_completion" == body["object"]
    assert [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}] == body["choices"]
