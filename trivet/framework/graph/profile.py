"""Where a step's time and bytes go, operator by operator, beside the fewest bytes their contracts allow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from trivet.framework.graph.cost import node_bytes
from trivet.framework.graph.plan import Batch, BoundPlan

_NUM_RUNS = 5  # the fastest counts: the others met something else


@dataclass(frozen=True)
class OperatorProfile:
    """What one operator takes of a step, all its nodes together."""

    operator: str
    num_nodes: int
    seconds: float
    fewest_bytes: int
    moved_bytes: int | None  # what its kernels read and wrote; None where nothing watches them


def profile(plan: BoundPlan, batch: Batch) -> list[OperatorProfile]:
    """The operators of a step, those that take the most time first. Nothing else may use the plan."""
    seconds = min((plan.profile(batch)[1] for _ in range(_NUM_RUNS)), key=lambda each: float(each.sum()))
    moved = plan.moved_bytes(batch)
    nodes = defaultdict(list)
    for i, node in enumerate(plan.nodes):
        nodes[node.operator].append(i)
    rows = [
        OperatorProfile(
            operator,
            len(own),
            float(seconds[own].sum()),
            sum(node_bytes(plan.graph, plan.nodes[i], batch) for i in own),
            None if moved is None else sum(moved[i] for i in own),
        )
        for operator, own in nodes.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def one_sequence(num_tokens: int, past: int = 0, slot_tokens: int = 1 << 30) -> Batch:
    """A step of one sequence: its tokens from position `past` on, in slots 0, 1, …; the last token's logits wanted."""
    num_slots = -(-(past + num_tokens) // slot_tokens)
    return Batch(
        tokens=np.zeros(num_tokens, np.int32),
        positions=np.arange(past, past + num_tokens, dtype=np.int32),
        starts=np.array([0, num_tokens], np.int32),
        slots=np.arange(num_slots, dtype=np.int32)[None],
        rows=np.array([num_tokens - 1], np.int32),
    )
