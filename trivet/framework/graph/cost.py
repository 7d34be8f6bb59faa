"""The least a step can cost, from the contracts of its operators: what must come from memory, what must be computed.

It measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trivet.framework.graph.ir import Graph, Node
from trivet.framework.graph.plan import Batch
from trivet.framework.memory.slots import kv_token_bytes
from trivet.operators.contract import operator_named


def node_bytes(graph: Graph, node: Node, batch: Batch) -> int:
    """The fewest bytes one node moves in this step, whichever cache or memory they come from."""
    return operator_named(node.operator).bytes(graph.call(node), _sizes(batch))


def node_flops(graph: Graph, node: Node, batch: Batch) -> int:
    """The operations of one node in this step, two for each multiply-add."""
    return operator_named(node.operator).flops(graph.call(node), _sizes(batch))


def streamed_bytes(graph: Graph, batch: Batch) -> int:
    """The fewest bytes that come from memory in this step: weights once, keys and values of every context once.

    The rows between operators are left out: they were just written, and stay in the processor's caches.
    """
    # What a contract still asks for when there is no row is what does not depend on rows.
    sizes = {**_sizes(batch), "tokens": 0, "rows": 0}
    return sum(operator_named(node.operator).bytes(graph.call(node), sizes) for node in graph.nodes)


def flops(graph: Graph, batch: Batch) -> int:
    """The operations of this step, two for each multiply-add."""
    return sum(node_flops(graph, node, batch) for node in graph.nodes)


@dataclass(frozen=True)
class StepCost:
    """The least that any step of a graph costs, as coefficients: `streamed_bytes` and `flops` without a batch."""

    body_bytes: int  # weights that every step reads
    head_bytes: int  # and those that it reads where a row's logits are wanted
    context_bytes: int  # for each position of each sequence's context
    token_flops: int
    row_flops: int
    attended_flops: int  # for each pair of a token and a position it looks at


_NOTHING = {"tokens": 0, "rows": 0, "sequences": 0, "context": 0, "attended": 0}


def step_cost(graph: Graph) -> StepCost:
    """The coefficients of `graph`, asked of its contracts one size at a time: they are sums of products of sizes."""
    body = head = context = tokens = rows = attended = 0
    for node in graph.nodes:
        contract, call = operator_named(node.operator), graph.call(node)
        fixed = contract.bytes(call, _NOTHING)
        idle = contract.flops(call, _NOTHING)
        row_flops = contract.flops(call, {**_NOTHING, "rows": 1}) - idle
        if row_flops:
            head += fixed
        else:
            body += fixed
        rows += row_flops
        context += contract.bytes(call, {**_NOTHING, "context": 1}) - fixed
        tokens += contract.flops(call, {**_NOTHING, "tokens": 1}) - idle
        attended += contract.flops(call, {**_NOTHING, "attended": 1}) - idle
    return StepCost(body, head, context, tokens, rows, attended)


def stream_bytes(graph: Graph) -> dict[str, int]:
    """What a token costs in each of the graph's streams."""
    sizes = {}
    for stream in graph.streams:
        dtype = graph.values[stream.name].dtype
        assert dtype is not None
        sizes[stream.name] = kv_token_bytes(stream.num_heads, stream.head_dim, dtype)
    return sizes


def _sizes(batch: Batch) -> dict[str, int]:
    last = batch.positions[batch.starts[1:] - 1].astype(np.int64)
    return {
        "tokens": len(batch.tokens),
        "rows": len(batch.rows),
        "sequences": len(batch.slots),
        "context": int((last + 1).sum()),
        "attended": int((batch.positions.astype(np.int64) + 1).sum()),
    }
