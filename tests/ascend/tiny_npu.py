"""The tiny oracle checkpoints as plans of an NPU, steps for them, and these without capture. Needs torch_npu."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import trivet.operators.npu
import trivet.operators.torch  # noqa: F401  registers its implementations, as the line above does
from tests.system.tiny import graph_and_weights
from trivet.base.dtypes import Array, DType
from trivet.framework.graph.buckets import bucket_of, bucket_sizes, padded
from trivet.framework.graph.npu_plan import NpuPlan
from trivet.framework.graph.plan import Batch, Limits

LIMITS = Limits(max_tokens=48, max_sequences=6, max_rows=48, max_context=300)
SLOT_TOKENS, MAX_SLOTS = 128, 3
NUM_SLOTS = MAX_SLOTS * LIMITS.max_sequences
DECODES = bucket_sizes(LIMITS.max_sequences)
TOKENS = bucket_sizes(LIMITS.max_tokens)

Chunk = tuple[int, int, int]  # sequence, positions that it has already, tokens of this step


def bind(family: str = "llama", dtype: DType = "bfloat16") -> NpuPlan:
    graph, weights = graph_and_weights(family, dtype, 2, "npu")
    return NpuPlan(graph, weights, limits=LIMITS, num_slots=NUM_SLOTS, slot_tokens=SLOT_TOKENS)


def step(chunks: Sequence[Chunk], wanted: Sequence[int] | None = None) -> Batch:
    """One step; each sequence has its own slots, and its tokens follow from their positions.

    Logits are wanted of the last token of the chunks numbered in `wanted`, of all unless it is given.
    """
    positions = [np.arange(past, past + count) for _, past, count in chunks]
    tokens = [(7 * sequence + 3 * at + 1) % 250 for (sequence, _, _), at in zip(chunks, positions, strict=True)]
    starts = np.cumsum([0, *(count for _, _, count in chunks)])
    slots = [[MAX_SLOTS * sequence + MAX_SLOTS - 1 - i for i in range(MAX_SLOTS)] for sequence, _, _ in chunks]
    rows = starts[1:] - 1 if wanted is None else starts[1:][list(wanted)] - 1
    return Batch(*(np.asarray(each, np.int32) for each in (np.concatenate(tokens), np.concatenate(positions),
                                                           starts, slots, rows)))  # fmt: skip


def call_by_call(bound: NpuPlan, batch: Batch, sizes: tuple[int, ...]) -> Array:
    """The same step, of the same shapes, without capture, streams or updates."""
    size = bucket_of(len(batch.tokens), sizes)
    rows = bucket_of(len(batch.rows), sizes)
    step = padded(batch, size, rows, MAX_SLOTS, NUM_SLOTS, SLOT_TOKENS)
    (logits,) = bound.values(step, bound.graph.outputs).values()
    return logits[: len(batch.rows)]
