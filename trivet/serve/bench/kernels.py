"""How near its roof is each kernel: the seconds of a step that its nodes take, beside the bytes and operations that
their contracts ask for.

Bytes are the fewest of the contract, whichever cache they come from: rows that are still in a cache may come faster
than memory gives them, and then the share is above one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from trivet.base.dtypes import Array
from trivet.framework.graph.cost import node_bytes
from trivet.framework.graph.ir import Graph, Node, format_spec
from trivet.framework.graph.plan import Batch, BoundPlan
from trivet.serve.bench.figure import Limit, Measurement
from trivet.serve.bench.steps import decode_steps, operations, own_slots, prefill_steps, refusal, seconds_of

PROMPT_TOKENS = 512


def measure_kernels(
    plan: BoundPlan,
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    repeats: int,
    tell: Callable[[str], None],
) -> Iterator[Measurement]:
    """A step that reads `prompt_tokens` at once, and one that decodes a token after them; the slowest kernels first.

    `tell` hears what is measured and what is not.
    """
    reason = refusal(plan, 1, prompt_tokens + 1)
    if reason is None and prompt_tokens > plan.limits.max_tokens:
        reason = f"a step of {prompt_tokens} tokens, the plan was bound for {plan.limits.max_tokens}"
    if reason is not None:
        tell(f"kernels: left out, it takes {reason}")
        return
    slots = own_slots(plan, 1, prompt_tokens + 1)
    steps = {
        "prefill": prefill_steps(plan, prompt_tokens, prompt_tokens, slots)[0],
        "decode": decode_steps(plan, [prompt_tokens], 1, slots)[0],
    }
    for name, step in steps.items():
        tell(f"kernels, {name}")
        seconds_of(plan, [step])  # the first touch of memory is no kernel's
        yield from _of_step(plan, name, step, repeats)


def _of_step(plan: BoundPlan, name: str, step: Batch, repeats: int) -> list[Measurement]:
    runs: Array = np.stack([plan.profile(step)[1] for _ in range(repeats)])  # [repeats, nodes]
    alike: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(plan.nodes):
        alike[described(plan.graph, node)].append(i)
    made = []
    for kernel, nodes in alike.items():
        needs: dict[Limit, float] = {
            "memory": float(sum(node_bytes(plan.graph, plan.nodes[i], step) for i in nodes)),
            **operations(plan, [plan.nodes[i] for i in nodes], step),
        }
        settings: dict[str, str | int | float | None] = {"step": name, "tokens": len(step.tokens), "nodes": len(nodes)}
        samples = tuple(runs[:, nodes].sum(axis=1).tolist())
        made.append(Measurement("kernels", f"{name}, {kernel}", "s", samples, needs, settings))
    return sorted(made, key=lambda each: -min(each.samples))


def described(graph: Graph, node: Node) -> str:
    """The operator, and for a linear its weight: matrices of other shapes meet other limits."""
    if node.operator != "linear":
        return node.operator
    return f"linear {format_spec(graph.values[str(node.inputs[1])])}"
