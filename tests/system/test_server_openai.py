"""The server as OpenAI's own client sees it."""

import asyncio

import openai
import pytest
from serving import MODEL, TEMPLATE, TOKENIZER, counted, serving

HELLO = [{"role": "user", "content": "hello"}]
FIRST = TOKENIZER.encode(TEMPLATE.render(HELLO), add_special=False)[-1] + 1  # the first token of every answer to HELLO


@pytest.fixture(scope="module")
def url():
    with serving() as server:
        yield f"{server.url}/v1"


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def chat(client, **options):
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO, "temperature": 0, **options})


def complete(client, **options):
    return client.completions.create(**{"model": MODEL, "prompt": [300], "temperature": 0, **options})


def test_the_served_model_is_listed(client):
    assert [MODEL] == [model.id for model in client.models.list()]
    assert MODEL == client.models.retrieve(MODEL).id


def test_a_chat_is_answered(client):
    answer = chat(client, max_tokens=12)

    (choice,) = answer.choices
    assert counted(FIRST, 12) == choice.message.content
    assert "length" == choice.finish_reason
    assert (9, 12, 21) == (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)


def test_a_streamed_chat_has_a_role_the_same_text_and_a_reason(client):
    events = list(chat(client, max_tokens=12, stream=True))

    assert "assistant" == events[0].choices[0].delta.role
    assert counted(FIRST, 12) == "".join(event.choices[0].delta.content or "" for event in events)
    assert [None] * (len(events) - 1) + ["length"] == [event.choices[0].finish_reason for event in events]
    assert 1 == len({event.id for event in events})


def test_a_streamed_usage_comes_last_and_without_choices(client):
    *others, last = chat(client, max_tokens=3, stream=True, stream_options={"include_usage": True})

    assert [None] * len(others) == [event.usage for event in others]
    assert ([], 3) == (last.choices, last.usage.completion_tokens)


def test_running_usage_counts_up(client):
    options = {"include_usage": True, "continuous_usage_stats": True}

    events = list(complete(client, max_tokens=3, stream=True, stream_options=options))

    assert [1, 2, 3, 3] == [event.usage.completion_tokens for event in events]


def test_a_completion_is_answered(client):
    answer = complete(client, max_tokens=5)

    assert counted(301, 5) == answer.choices[0].text
    assert (1, 5) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)


def test_a_streamed_completion_has_the_same_text(client):
    events = list(complete(client, max_tokens=5, stream=True))

    assert counted(301, 5) == "".join(event.choices[0].text for event in events)
    assert "length" == events[-1].choices[0].finish_reason


def test_choices_are_numbered_prompt_by_prompt(client):
    answer = complete(client, prompt=[[300], [310]], n=2, max_tokens=2)

    expected = [(0, counted(301, 2)), (1, counted(301, 2)), (2, counted(311, 2)), (3, counted(311, 2))]
    assert expected == [(choice.index, choice.text) for choice in answer.choices]
    assert (2, 8) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)


def test_streamed_choices_of_several_prompts_each_come_whole(client):
    texts = ["", "", "", ""]
    for event in complete(client, prompt=[[300], [310]], n=2, max_tokens=4, stream=True):
        texts[event.choices[0].index] += event.choices[0].text

    assert [counted(301, 4)] * 2 + [counted(311, 4)] * 2 == texts


def test_several_texts_are_several_prompts(client):
    answer = complete(client, prompt=["a", "b"], max_tokens=1)

    assert ["b", "c"] == [choice.text for choice in answer.choices]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_stop_string_ends_the_text_before_it(client, is_streamed):
    answer = complete(client, prompt="a", max_tokens=10, stop="fg", stream=is_streamed)

    choices = [event.choices[0] for event in answer] if is_streamed else answer.choices
    assert "bcde" == "".join(choice.text for choice in choices)
    assert "stop" == choices[-1].finish_reason


def test_a_stop_token_ends_the_text(client):
    answer = complete(client, prompt=[300], max_tokens=10, extra_body={"stop_token_ids": [303]})

    assert (counted(301, 2), "stop") == (answer.choices[0].text, answer.choices[0].finish_reason)


def test_the_end_of_text_token_ends_the_text(client):
    answer = complete(client, prompt=[0], max_tokens=10)

    assert ("", "stop") == (answer.choices[0].text, answer.choices[0].finish_reason)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_chat_logprobs_name_every_token(client, is_streamed):
    answer = chat(client, max_tokens=3, logprobs=True, top_logprobs=2, stream=is_streamed)

    choices = [event.choices[0] for event in answer] if is_streamed else answer.choices
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert [TOKENIZER.token_text(FIRST + i) for i in range(3)] == [entry.token for entry in entries]
    assert [list(TOKENIZER.token_bytes(FIRST + i)) for i in range(3)] == [entry.bytes for entry in entries]
    assert all(entry.logprob == entry.top_logprobs[0].logprob > entry.top_logprobs[1].logprob for entry in entries)


def test_completion_logprobs_name_every_token_and_its_place(client):
    logprobs = complete(client, prompt=[300], max_tokens=3, logprobs=1).choices[0].logprobs

    tokens = [TOKENIZER.token_text(token) for token in (301, 302, 303)]
    assert tokens == logprobs.tokens
    assert [0, len(tokens[0]), len(tokens[0] + tokens[1])] == logprobs.text_offset
    assert tokens == [name for top in logprobs.top_logprobs for name in top]


def test_the_same_seed_gives_the_same_answer(client):
    first, second = (
        complete(client, max_tokens=20, temperature=2, seed=5, extra_body={"repetition_penalty": 40}).choices[0].text
        for _ in range(2)
    )

    assert first == second


def test_32_chats_at_once_are_each_answered_whole(url):
    async def ask(client, number):
        events = await client.completions.create(
            model=MODEL, prompt=[260 + number], max_tokens=40, temperature=0, stream=True
        )
        return "".join([event.choices[0].text async for event in events])

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(32)))

    assert [counted(261 + number, 40) for number in range(32)] == asyncio.run(ask_all())


@pytest.mark.parametrize("options, parameter", [
    ({"max_tokens": 0}, "max_tokens"), ({"temperature": 3}, "temperature"), ({"messages": []}, "messages"),
    ({"n": 500}, "n"), ({"extra_body": {"colour": 1}}, "colour"), ({"top_p": "x"}, "top_p"),
    ({"messages": [{"role": "user", "content": "a " * 2000}]}, "prompt"), ({"logit_bias": {"9999": 1}}, "logit_bias"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
])  # fmt: skip
@pytest.mark.parametrize("is_streamed", [False, True])
def test_bad_input_is_a_400_that_names_the_parameter(client, options, parameter, is_streamed):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, stream=is_streamed, **options)

    assert parameter == caught.value.param
    assert "invalid_request_error" == caught.value.type


@pytest.mark.parametrize("prompt", ["", [], ["a", ""], [[]]])
def test_an_empty_prompt_is_a_400_and_not_an_answer_to_nothing(client, prompt):
    with pytest.raises(openai.BadRequestError, match="is empty") as caught:
        complete(client, prompt=prompt)

    assert "prompt" == caught.value.param


def test_another_model_is_a_404_that_names_the_one_served(client):
    with pytest.raises(openai.NotFoundError, match=f"this server serves {MODEL}") as caught:
        chat(client, model="gpt-4o")

    assert "model_not_found" == caught.value.code
