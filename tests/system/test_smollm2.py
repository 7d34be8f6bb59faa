"""Real weights: SmolLM2-135M-Instruct against what its published implementation computes with them."""

import numpy as np
import pytest

from tests.system.smollm2 import recorded, weights
from trivet.framework.engine.llm import LLM
from trivet.framework.engine.params import SamplingParams
from trivet.framework.graph.plan import Batch
from trivet.framework.model.loader import LoadedModel, load

pytestmark = pytest.mark.network

CERTAIN = 0.05  # a smaller margin between the first two logits may go either way in bfloat16


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(weights(), max_context=1024, max_sequences=8)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_greedy_tokens_are_the_recorded_ones_up_to_the_first_narrow_margin(model: LoadedModel, number: int) -> None:
    wanted, margins = recorded()[f"greedy_fp32_{number}"], recorded()[f"margins_fp32_{number}"]
    num_certain = int(np.argmax(margins < CERTAIN)) if (margins < CERTAIN).any() else len(margins)
    params = SamplingParams(temperature=0, max_tokens=len(wanted), ignore_eos=True)
    (completion,) = LLM(model).generate([recorded()[f"prompt{number}"].tolist()], params)

    assert wanted[:num_certain].tolist() == list(completion.answers[0].token_ids[:num_certain])
    assert num_certain > 0


def test_log_probabilities_of_a_text_are_half_as_wrong_as_those_of_the_published_code_in_bfloat16(
    model: LoadedModel,
) -> None:
    wanted, rounded = (recorded()[f"text_logprobs_{dtype}"] for dtype in ("fp32", "bf16"))
    tokens = recorded()["text"]

    assert np.abs(logprobs(model, tokens) - wanted).mean() < 0.5 * np.abs(rounded - wanted).mean()


def logprobs(model: LoadedModel, tokens: np.ndarray) -> np.ndarray:
    """The log probability of each token but the first."""
    logits = all_logits(model, tokens).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    of_all = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return of_all[np.arange(len(tokens) - 1), tokens[1:]]


def all_logits(model: LoadedModel, tokens: np.ndarray) -> np.ndarray:
    """Logits at every position, a few rows a step: a plan is bound for no more rows than sequences."""
    plan = model.plan
    rows = []
    for start in range(0, len(tokens), plan.limits.max_rows):
        part = tokens[start : start + plan.limits.max_rows]
        positions = np.arange(start, start + len(part), dtype=np.int32)
        slots = np.arange(-(-len(tokens) // plan.slot_tokens), dtype=np.int32)[None]
        wanted = np.arange(len(part), dtype=np.int32)
        batch = Batch(part, positions, np.array([0, len(part)], np.int32), slots, wanted)
        rows.append(plan.run(batch).copy())
    return np.concatenate(rows)


def test_it_answers_in_sense(model: LoadedModel) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (completion,) = LLM(model).chat(question, SamplingParams(temperature=0, max_tokens=32))

    assert completion.text == "The capital of France is Paris."
