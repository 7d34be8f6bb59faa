"""The server with a whole model behind it: the tiny llama, from its checkpoint to the client."""

import asyncio
from pathlib import Path

import openai
import pytest

from trivet import LLM, SamplingParams
from trivet.base.settings import Settings
from trivet.framework.graph.side_by_side import side_by_side
from trivet.framework.model.loader import load
from trivet.serve.listening import listen
from trivet.serve.server import Server
from trivet.serve.service import Service, start_model

CHECKPOINT = Path(__file__).parents[1] / "fixtures/tiny/llama"
CONVERSATIONS = [[{"role": "user", "content": f"tell me {number} things"}] for number in range(32)]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def load_tiny(tmp_path_factory):
    settings = Settings(cache_dir=tmp_path_factory.mktemp("cache"), api_key=None, cpu_target=None)
    return lambda: load(CHECKPOINT, dtype="float32", settings=settings, threads=1, kv_memory=16 << 20, max_context=256)


@pytest.fixture(scope="module", params=[1, 2], ids=["one lane", "two lanes"])
def url(load_tiny, request):
    model = load_tiny()
    lanes = None if request.param == 1 else side_by_side(model.plan, [None, None], 1)
    service = Service("tiny")
    service.open(start_model(model.plan, model.tokenizer, model.chat_template, "tiny", lanes=lanes))
    with Server(service, listen("127.0.0.1", 0)) as server:
        yield f"{server.url}/v1"


@pytest.fixture(scope="module")
def alone(load_tiny):
    """Each conversation's answer from the same model in this process, one at a time."""
    llm = LLM(load_tiny())
    return [llm.chat(conversation, GREEDY)[0].text for conversation in CONVERSATIONS]


async def ask(client, conversation):
    stream = await client.chat.completions.create(
        model="tiny", messages=conversation, temperature=0, max_tokens=24, stream=True
    )
    return "".join([event.choices[0].delta.content or "" async for event in stream])


def test_32_streams_at_once_each_say_what_the_model_says_alone(url, alone):
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, conversation) for conversation in CONVERSATIONS))

    assert alone == asyncio.run(ask_all())


def test_a_streamed_answer_is_the_whole_one_in_pieces(url):
    options = {"model": "tiny", "prompt": "once", "max_tokens": 32, "temperature": 0.8, "seed": 7, "n": 3}
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        whole = client.completions.create(**options)
        texts = ["", "", ""]
        for event in client.completions.create(**options, stream=True):
            texts[event.choices[0].index] += event.choices[0].text

    assert [choice.text for choice in whole.choices] == texts
    assert 3 == len(set(texts))
