"""How fast is a prompt read: tokens per second of prefill, one sequence through the plan alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trivet.framework.graph.plan import BoundPlan
from trivet.serve.bench.figure import Measurement
from trivet.serve.bench.steps import needs_per_token, own_slots, prefill_steps, refusal, seconds_of

PROMPTS = (512, 2048)  # tokens


def measure_prefill(
    plan: BoundPlan, *, prompts: Sequence[int] = PROMPTS, step_tokens: int, repeats: int, tell: Callable[[str], None]
) -> Iterator[Measurement]:
    """Each prompt from nothing, in steps of at most `step_tokens`. `tell` hears what is measured and what is not."""
    for prompt_tokens in prompts:
        name = f"prefill, {prompt_tokens} tokens"
        reason = refusal(plan, 1, prompt_tokens)
        if reason is not None:
            tell(f"{name}: left out, it takes {reason}")
            continue
        tell(name)
        steps = prefill_steps(plan, prompt_tokens, step_tokens, own_slots(plan, 1, prompt_tokens))
        seconds_of(plan, steps)  # the first touch of memory is not prefill
        samples = tuple(prompt_tokens / seconds_of(plan, steps) for _ in range(repeats))
        settings = {"prompt_tokens": prompt_tokens, "step_tokens": step_tokens}
        yield Measurement("prefill", name, "tokens/s", samples, needs_per_token(plan, steps), settings)
