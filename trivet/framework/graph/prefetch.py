"""Which weights a step asks for ahead of their use, so that they lie in L2 when their product begins. Data for a plan.

A decode is bound by what it reads, and mostly by its matrices. Between two products the operators on vectors read
little, and the memory would idle: behind each product the matrix of the next one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trivet.framework.graph.ir import Graph
from trivet.operators.contract import operator_named


@dataclass(frozen=True)
class Prefetch:
    """What is asked for while a node runs."""

    behind: str  # the first output of the node that is followed
    weight: str
    num_bytes: int  # from its beginning


def prefetches(graph: Graph, max_bytes: int) -> tuple[Prefetch, ...]:
    """What a decode asks for, in order; of a matrix of more than `max_bytes` as many, and nothing where that is 0.

    Nothing either where products follow each other at once: the first one reads all that time.
    """
    return tuple(_prefetches(graph, max_bytes)) if max_bytes > 0 else ()


def _prefetches(graph: Graph, max_bytes: int) -> Iterator[Prefetch]:
    before, between = None, 0
    for node in graph.nodes:
        if node.operator != "linear":
            between += not operator_named(node.operator).is_view
            continue
        weight = node.inputs[1]
        assert weight is not None
        if before is not None and between > 0:
            yield Prefetch(before, weight, min(graph.values[weight].bytes({}), max_bytes))
        before, between = node.outputs[0], 0
