"""Does a loaded model keep its word, and how fast is it? One prompt, answered greedily: alone, then in a crowd.

The two must agree bit for bit, whatever else runs and however the prompt was cut. The answer is kept with the
package, one for each device and format of the KV cache, so that a later start on this or another host can be compared
with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from trivet.base.errors import TrivetError
from trivet.driver.devices.device import DeviceName
from trivet.framework.engine.delta import Delta
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Request, new_request
from trivet.framework.graph.cost import streamed_bytes
from trivet.framework.graph.plan import BoundPlan
from trivet.framework.graph.profile import one_sequence
from trivet.framework.model.loader import LoadedModel
from trivet.framework.model.package import Package

QUESTION = "What is the capital of France?"
RECORD = "answer.json"  # in the package's folder

_NUM_TOKENS = 24
_ODD_STEP = 7  # tokens of a step in the crowd, so that prompts are cut where no block ends


@dataclass(frozen=True)
class Answer:
    """Greedy tokens of the probe's prompt, with their log probabilities."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Speed:
    ttft_s: float  # of the probe's prompt, on an idle engine
    num_prompt_tokens: int
    decode_tokens_per_s: float  # batch of one
    decode_bytes: int  # that such a step streams from memory at least, half way through the answer


def probe_prompt(model: LoadedModel) -> tuple[int, ...]:
    """The question as the model is used to being asked."""
    if model.package.tokenizer.chat_template is not None:
        text = model.chat_template.render([{"role": "user", "content": QUESTION}])
        return tuple(model.tokenizer.encode(text, add_special=False))
    return tuple(model.tokenizer.encode(QUESTION, add_special=True))


def answer_alone(plan: BoundPlan, prompt: Sequence[int]) -> tuple[Answer, Speed]:
    """Raises TrivetError, as `answer_in_a_crowd` does, when there is no answer."""
    engine = Engine(plan, None)
    engine.add(_request("alone", prompt))
    deltas: list[Delta] = []
    start = time.perf_counter()
    first_token_s = 0.0
    while engine.has_work:
        deltas += engine.step()
        first_token_s = first_token_s or (time.perf_counter() - start if deltas else 0.0)
    decode_s = time.perf_counter() - start - first_token_s
    answer = _answer(prompt, deltas, "alone")
    half_way = one_sequence(1, past=len(prompt) + len(answer.tokens) // 2)
    return answer, Speed(
        ttft_s=first_token_s,
        num_prompt_tokens=len(prompt),
        decode_tokens_per_s=(len(answer.tokens) - 1) / max(decode_s, 1e-9),
        decode_bytes=streamed_bytes(plan.graph, half_way),
    )


def answer_in_a_crowd(plan: BoundPlan, prompt: Sequence[int]) -> Answer:
    """The same prompt among others that come before and after it, in steps of a few tokens."""
    engine = Engine(plan, None, max_step_tokens=min(_ODD_STEP, plan.limits.max_tokens))
    engine.add(_request("before", prompt[::-1]))
    engine.step()
    engine.add(_request("alone", prompt))
    engine.add(_request("after", prompt[: len(prompt) // 2 + 1]))
    deltas: list[Delta] = []
    while engine.has_work:
        deltas += engine.step()
    return _answer(prompt, deltas, "alone")


def who_answers(package: Package, device: DeviceName) -> str:
    """Whose answers are the same: those of a device, and of a format where the KV cache has one of its own.

    Each rounds differently, so their greedy answers may part; each is held to its own.
    """
    formats = {package.graph.values[stream.name].dtype for stream in package.graph.streams}
    return " ".join([device, *sorted(dtype for dtype in formats if dtype not in (None, package.dtype))])


def recorded_answer(package: Path, who: str) -> Answer | None:
    """What an earlier start of `who` answered; None where none was recorded, or the record cannot be read."""
    try:
        document = _records(package)[who]
        return Answer(*(tuple(document[key]) for key in ("prompt", "tokens", "logprobs")))
    except (KeyError, TypeError):
        return None


def record_answer(package: Path, who: str, answer: Answer) -> bool:
    """Keep the answer with the package, beside those of others; False where the folder cannot be written to."""
    try:
        (package / RECORD).write_text(json.dumps({**_records(package), who: vars(answer)}))
    except OSError:
        return False
    return True


def _records(package: Path) -> dict[str, Any]:
    """Everybody's record; none where the file is absent or is not such a record."""
    try:
        records = json.loads((package / RECORD).read_text())
        return {who: record for who, record in records.items() if who.split(" ")[0] in get_args(DeviceName)}
    except (OSError, ValueError, AttributeError):
        return {}


def _request(name: str, prompt: Sequence[int]) -> Request:
    params = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, logprobs=0, ignore_eos=True)
    return new_request(name, prompt, params)


def _answer(prompt: Sequence[int], deltas: Sequence[Delta], name: str) -> Answer:
    mine = [delta for delta in deltas if delta.request_id == name]
    if any(delta.finish_reason == "error" for delta in mine):  # two that have failed alike would pass for the same
        raise TrivetError(
            f"the known prompt of {len(prompt)} tokens could not be answered: a step failed, or its logits are no "
            "numbers",
            "trivet operators verify",
        )
    tokens = tuple(token for delta in mine for token in delta.token_ids)
    logprobs = tuple(each.logprob for delta in mine for each in delta.logprobs or ())
    return Answer(tuple(prompt), tokens, logprobs)
