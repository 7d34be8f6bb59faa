"""How fast does an answer come: tokens per second of decode after a prompt, through the plan alone and the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.graph.plan import Batch, BoundPlan
from trivet.serve.bench.figure import Measurement
from trivet.serve.bench.steps import (
    decode_steps,
    needs_per_token,
    own_slots,
    prefill_steps,
    refusal,
    seconds_of,
    some_tokens,
)

BATCHES = (1, 8, 32)  # sequences
PROMPT_TOKENS = 128
NEW_TOKENS = 32  # of each sequence, in one repeat


def measure_decode(
    plan: BoundPlan,
    *,
    batches: Sequence[int] = BATCHES,
    prompt_tokens: int = PROMPT_TOKENS,
    new_tokens: int = NEW_TOKENS,
    step_tokens: int,
    repeats: int,
    tell: Callable[[str], None],
) -> Iterator[Measurement]:
    """Each batch through the plan; the largest through the engine too, so that the engine's own cost shows.

    Every sequence answers a prompt of `prompt_tokens` with `new_tokens`; prompts are read in steps of at most
    `step_tokens`, and are not in the time. `tell` hears what is measured and what is not.
    """
    for batch in batches:
        settings = {"batch": batch, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
        # While the engine reads the last prompts, the first sequences already answer: one token in each such step.
        early_tokens = batch * prompt_tokens // max(1, step_tokens - batch) + 1
        num_positions = prompt_tokens + early_tokens + new_tokens + 1
        name = f"decode, batch {batch}"
        reason = refusal(plan, batch, num_positions)
        if reason is not None:
            tell(f"{name}: left out, it takes {reason}")
            continue
        tell(name)
        steps = _after_prompts(plan, batch, prompt_tokens, new_tokens, step_tokens)
        samples = tuple(batch * new_tokens / seconds_of(plan, steps) for _ in range(repeats))
        needs = needs_per_token(plan, steps)
        yield Measurement("decode", name, "tokens/s", samples, needs, {**settings, "through": "plan"})
        if batch == max(batches):
            name = f"{name}, engine"
            tell(name)
            runs = [_through_engine(plan, batch, prompt_tokens, new_tokens, step_tokens) for _ in range(repeats)]
            samples = tuple(batch * new_tokens / seconds for seconds, _ in runs)
            needs = needs_per_token(plan, runs[0][1])  # the engine is deterministic: all runs are of the same steps
            yield Measurement("decode", name, "tokens/s", samples, needs, {**settings, "through": "engine"})


def _after_prompts(plan: BoundPlan, batch: int, prompt_tokens: int, new_tokens: int, step_tokens: int) -> list[Batch]:
    """Decode steps, once their prompts are in the cache and memory is warm. Running them again changes nothing."""
    slots = own_slots(plan, batch, prompt_tokens + new_tokens)
    for own in slots:
        seconds_of(plan, prefill_steps(plan, prompt_tokens, step_tokens, own[None]))
    steps = decode_steps(plan, [prompt_tokens] * batch, new_tokens, slots)
    seconds_of(plan, steps)
    return steps


def _through_engine(
    plan: BoundPlan, batch: int, prompt_tokens: int, new_tokens: int, step_tokens: int
) -> tuple[float, list[Batch]]:
    """Seconds in which every sequence was given `new_tokens` by the engine, and such steps for the plan alone."""
    engine = Engine(plan, None, max_step_tokens=step_tokens)
    params = SamplingParams(temperature=0, ignore_eos=True)
    prompt = some_tokens(plan, prompt_tokens).tolist()
    for i in range(batch):
        engine.add(new_request(str(i), prompt, params, cache_salt=str(i)))  # each computes its own
    num_generated: dict[str, int] = {}
    while len(num_generated) < batch:
        num_generated.update((delta.request_id, delta.num_generated_tokens) for delta in engine.step())
    start = time.perf_counter()
    num_new = sum(len(delta.token_ids) for _ in range(new_tokens) for delta in engine.step())
    seconds = time.perf_counter() - start
    assert num_new == batch * new_tokens, f"{num_new} tokens came, {batch} sequences should have had {new_tokens} each"
    engine.abort_all()
    # The newest token of a sequence is not in the cache yet: it is what the next step computes.
    positions = [prompt_tokens + count - 1 for count in num_generated.values()]
    return seconds, decode_steps(plan, positions, new_tokens, own_slots(plan, batch, max(positions) + new_tokens))
