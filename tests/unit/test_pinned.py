"""Prompts that are kept in the pool: what is refused, what it leaves to others, and which tokens a system prompt is."""

from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from tests.system.serving import MODEL, TEMPLATE, TOKENIZER, CountingPlan, serving
from tests.unit.pretend_plan import PretendPlan
from trivet.base.errors import RequestError, ResourceError
from trivet.cli.serve import serve
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.kv_metrics import KvMetrics
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.model.system_prompt import system_prompt_tokens

TINY = Path(__file__).parents[1] / "fixtures" / "tiny" / "llama"


def test_a_pinned_prompt_is_computed_at_once_and_only_its_whole_slots_are_kept():
    plan = PretendPlan()
    engine = Engine(plan, None)

    assert 2 == engine.pin(range(3, 14))
    assert 11 == len(plan.batches[0].tokens)
    engine.add(new_request("a", [*range(3, 14), 5], SamplingParams(max_tokens=1)))
    engine.step()
    assert 4 == len(plan.batches[1].tokens)
    engine.check()


def test_pinning_twice_takes_no_more():
    engine = Engine(PretendPlan(), None)
    engine.pin(range(3, 14))

    assert 2 == engine.pin(range(3, 14))
    assert 2 == engine.kv_counts().pinned


def test_another_salt_shares_nothing_of_what_is_pinned():
    plan = PretendPlan()
    engine = Engine(plan, None)
    engine.pin(range(3, 14))
    engine.add(new_request("a", range(3, 14), SamplingParams(max_tokens=1), cache_salt="another"))
    engine.step()

    assert 11 == len(plan.batches[1].tokens)


@pytest.mark.parametrize(
    ("tokens", "error", "words"),
    [(range(3, 6), ResourceError, "3 tokens to pin fill no slot, wanted at least 4"),
     ([3] * 40, ResourceError, "40 tokens to pin take 10 slots beside the 0 pinned, wanted at most 50% of the 16"),
     ([3] * 12 + [99], RequestError, "prompt has a token outside 0 to 22")],
)  # fmt: skip
def test_what_cannot_be_pinned_is_refused_and_nothing_is_kept(tokens, error, words):
    engine = Engine(PretendPlan(), None)
    with pytest.raises(error, match=words):
        engine.pin(tokens)

    assert (0, 64) == (engine.kv_counts().pinned, engine.max_length)


def test_what_cannot_be_computed_is_not_taken_for_pinned():
    plan = PretendPlan()
    plan.fail_at = 1
    engine = Engine(plan, None)
    with pytest.raises(ResourceError, match="2 slots to pin could not be computed"):
        engine.pin(range(3, 14))

    assert (0, 64) == (engine.kv_counts().pinned, engine.max_length)
    assert 2 == engine.pin(range(3, 14))


def test_a_sequence_may_be_as_long_as_what_is_not_pinned():
    engine = Engine(PretendPlan(num_slots=8), None)
    engine.pin([3] * 12)
    assert (8 - 3) * 4 == engine.max_length
    engine.add(new_request("a", [5] * 10, SamplingParams(ignore_eos=True)))
    deltas = []
    while engine.has_work:
        deltas += engine.step()

    assert ("length", 10) == (deltas[-1].finish_reason, deltas[-1].num_generated_tokens)
    engine.check()


def test_metrics_tell_how_many_slots_are_pinned():
    engine = Engine(PretendPlan(), None)
    engine.pin(range(3, 14))
    registry = CollectorRegistry()
    registry.register(KvMetrics("m", engine.kv_counts))

    assert 2 == registry.get_sample_value("trivet:kv_pinned_slots", {"model_name": "m", "engine": "0"})


def test_a_system_prompt_is_what_chats_that_have_it_begin_with():
    tokens = system_prompt_tokens("You count things.", TOKENIZER, TEMPLATE)
    chats = [[{"role": "system", "content": "You count things."}, {"role": "user", "content": asked}]
             for asked in ("How many?", "Tell me.")]  # fmt: skip

    for chat in chats:
        assert tokens == TOKENIZER.encode(TEMPLATE.render(chat), add_special=False)[: len(tokens)]
    assert TOKENIZER.decode(tokens).count("You count things.") == 1


def test_a_server_has_a_pinned_system_prompt_computed_before_it_is_ready():
    text = "You are asked to count things, one after the other, and to tell of each how many there are."
    plan = CountingPlan()
    with serving(plan, pinned=[text]) as server:
        num_before = plan.num_steps
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "go"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 1}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)
        metrics = httpx.get(f"{server.url}/metrics").text
    num_slots = len(system_prompt_tokens(text, TOKENIZER, TEMPLATE)) // plan.slot_tokens

    assert (200, 1) == (answer.status_code, num_before)
    assert f'trivet:kv_pinned_slots{{engine="0",model_name="{MODEL}"}} {num_slots}.0' in metrics
    assert f'trivet:kv_found_tokens_total{{engine="0",model_name="{MODEL}",tier="pool"}} {num_slots * 16}.0' in metrics


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b" \n"])
def test_a_file_without_a_text_is_refused_before_anything_is_loaded(tmp_path, content):
    (tmp_path / "prompt").write_bytes(content)
    result = CliRunner().invoke(serve, [str(TINY), "--pin-prompt", str(tmp_path / "prompt")])

    assert f"--pin-prompt {tmp_path / 'prompt'}" in result.exception.message
