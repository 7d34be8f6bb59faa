from dataclasses import dataclass

import pytest

import trivet
from tests.unit.pretend_plan import PretendPlan, PretendTokenizer
from trivet import LLM, SamplingParams
from trivet.base.errors import RequestError
from trivet.driver.devices.device import Device


class PretendTemplate:
    def render(self, messages, *, add_generation_prompt=True, suffix=""):
        return "".join(message["content"] for message in messages) + suffix


@dataclass
class PretendModel:
    plan: PretendPlan
    tokenizer: PretendTokenizer
    chat_template: PretendTemplate
    device: Device
    tiers: None = None


def model():
    device = Device("cpu", "pretended", None, (0,), None, "the only one")
    return PretendModel(PretendPlan(), PretendTokenizer(), PretendTemplate(), device)


PARAMS = SamplingParams(seed=3, max_tokens=6, ignore_eos=True)


def test_one_prompt_may_be_a_text_or_tokens():
    by_text = LLM(model()).generate("ab", PARAMS)
    by_tokens = LLM(model()).generate([3, 4, 5], PARAMS)

    assert 1 == len(by_text)
    assert (3, 4, 5) == by_text[0].prompt_ids
    assert by_text == by_tokens


def test_completions_come_in_the_order_of_their_prompts():
    llm = LLM(model())
    prompts = ["a", [5, 6], "abcabc"]
    alone = [llm.generate(prompt, PARAMS)[0] for prompt in prompts]

    assert alone == llm.generate(prompts, PARAMS)
    assert alone == llm.generate(prompts, [PARAMS] * 3)


def test_an_answer_has_all_that_was_asked_for():
    params = SamplingParams(seed=3, max_tokens=6, ignore_eos=True, n=2, logprobs=1)
    (completion,) = LLM(model()).generate("a", params)

    assert 2 == len(completion.answers)
    assert completion.text == completion.answers[0].text
    for answer in completion.answers:
        assert 6 == len(answer.token_ids)
        assert list(answer.token_ids) == [logprob.token_id for logprob in answer.logprobs]
        assert "length" == answer.finish_reason


def test_a_chat_is_rendered_without_special_tokens_of_its_own():
    messages = [{"role": "user", "content": "ab"}]
    llm = LLM(model())

    assert (4, 5) == llm.chat(messages, PARAMS)[0].prompt_ids
    assert [(4, 5, 6)] * 2 == [each.prompt_ids for each in llm.chat([messages, messages], PARAMS, suffix="c")]


def test_one_bad_prompt_refuses_all_and_leaves_nothing_behind():
    llm = LLM(model())
    with pytest.raises(RequestError, match="prompt is empty"):
        llm.generate(["a", []], PARAMS)
    with pytest.raises(RequestError, match="params has 1 items for 2 prompts"):
        llm.generate(["a", "b"], [PARAMS])

    assert 1 == len(llm.generate("a", PARAMS))


def test_no_prompts_no_completions():
    assert [] == LLM(model()).generate([], PARAMS)
    assert [] == LLM(model()).chat([], PARAMS)


@pytest.mark.parametrize("prompts", ["", [""], ["a", ""], [[]], ["a", []]])
def test_an_empty_prompt_is_refused_even_where_a_text_begins_with_a_token_of_its_own(prompts):
    with pytest.raises(RequestError, match="prompt is empty") as caught:
        LLM(model()).generate(prompts, PARAMS)

    assert "prompt" == caught.value.parameter


def test_a_conversation_without_messages_is_refused():
    with pytest.raises(RequestError, match="messages is empty"):
        LLM(model()).chat([[{"role": "user", "content": "ab"}], []], PARAMS)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LLMM'"):
        _ = trivet.LLMM
