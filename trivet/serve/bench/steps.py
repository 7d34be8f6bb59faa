"""Steps of a plan made by hand, and the time they take: what an engine would run, without the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from trivet.base.dtypes import Array
from trivet.framework.graph.cost import node_flops, streamed_bytes
from trivet.framework.graph.ir import Node
from trivet.framework.graph.plan import Batch, BoundPlan, Plan
from trivet.serve.bench.figure import Limit


def prefill_steps(plan: Plan, num_tokens: int, step_tokens: int, slots: Array) -> list[Batch]:
    """A prompt of so many tokens in steps of at most `step_tokens`; the logits wanted are those of its last token.

    `slots` [1, slots of one sequence] is where it goes.
    """
    tokens = some_tokens(plan, num_tokens)
    steps = []
    for first in range(0, num_tokens, step_tokens):
        positions = np.arange(first, min(first + step_tokens, num_tokens), dtype=np.int32)
        count = len(positions)
        rows = [count - 1] if first + count == num_tokens else []
        starts = np.array([0, count], np.int32)
        steps.append(Batch(tokens[positions], positions, starts, slots, np.array(rows, np.int32)))
    return steps


def decode_steps(plan: Plan, first_positions: Sequence[int], num_steps: int, slots: Array) -> list[Batch]:
    """So many steps in which every sequence goes on by one token; sequence i from first_positions[i] in slots[i]."""
    count = len(first_positions)
    tokens, starts = some_tokens(plan, count), np.arange(count + 1, dtype=np.int32)
    positions = np.asarray(first_positions, np.int32)
    return [Batch(tokens, positions + np.int32(i), starts, slots, starts[:-1]) for i in range(num_steps)]


def own_slots(plan: Plan, num_sequences: int, num_positions: int) -> Array:
    """Slots [sequences, slots of one sequence] for sequences of so many positions. The caller has asked `refusal`."""
    each = -(-num_positions // plan.slot_tokens)
    return np.arange(num_sequences * each, dtype=np.int32).reshape(num_sequences, each)


def refusal(plan: Plan, num_sequences: int, num_positions: int) -> str | None:
    """Why the plan cannot hold so many sequences of so many positions, or None."""
    limits = plan.limits
    if num_positions > limits.max_context:
        return f"{num_positions} positions, the model has {limits.max_context}"
    if num_sequences > limits.max_sequences:
        return f"{num_sequences} sequences, the plan was bound for {limits.max_sequences}"
    wanted = own_slots(plan, num_sequences, num_positions).size
    return f"{wanted} slots of KV cache, there is memory for {plan.num_slots}" if wanted > plan.num_slots else None


def some_tokens(plan: Plan, count: int) -> Array:
    """Tokens without sense, always the same: what they are does not change the time they take."""
    return np.random.default_rng(0).integers(0, plan.vocab_size, count).astype(np.int32)


def seconds_of(plan: Plan, steps: Sequence[Batch]) -> float:
    start = time.perf_counter()
    for step in steps:
        plan.run(step)
    return time.perf_counter() - start


def needs_per_token(plan: BoundPlan, steps: Sequence[Batch]) -> dict[Limit, float]:
    """Bytes from memory and operations, of all steps together, for each of their tokens."""
    num_tokens = sum(len(step.tokens) for step in steps)
    needs: dict[Limit, float] = {"memory": sum(streamed_bytes(plan.graph, step) for step in steps) / num_tokens}
    for step in steps:
        for limit, count in operations(plan, plan.nodes, step).items():
            needs[limit] = needs.get(limit, 0.0) + count / num_tokens
    return needs


# Formats of an operator's second input beside which the first is rounded to bfloat16.
_WITH_HALVES = {
    "linear": ("bfloat16", "int8"),
    "grouped_linear": ("bfloat16", "int8"),
    "attention": ("bfloat16",),
}


def operations(plan: BoundPlan, nodes: Iterable[Node], step: Batch) -> dict[Limit, float]:
    """Those of some nodes by the limit they meet: weights in bfloat16 or int8, and caches in bfloat16, are multiplied
    with bfloat16."""
    counts: dict[Limit, float] = {"multiply-add": 0.0, "bfloat16 multiply-add": 0.0}
    for node in nodes:
        formats = _WITH_HALVES.get(node.operator, ())
        is_half = bool(formats) and plan.graph.values[str(node.inputs[1])].dtype in formats
        counts["bfloat16 multiply-add" if is_half else "multiply-add"] += node_flops(plan.graph, node, step)
    return counts
