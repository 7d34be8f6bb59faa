"""The arrays of one step, made from its chunks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from trivet.framework.engine.chunk import Chunk
from trivet.framework.graph.plan import Batch


def to_batch(chunks: Sequence[Chunk]) -> Batch:
    """The step that computes `chunks` in this order; the logits wanted are those of every sequence's last token."""
    tokens = array("i")
    firsts, counts, rows = [], [], []
    slots = np.zeros((len(chunks), max(len(chunk.sequence.slots) for chunk in chunks)), np.int32)
    for row, (sequence, num_tokens) in enumerate(chunks):
        first = sequence.num_computed
        last = first + num_tokens
        tokens.extend(sequence.tokens[first:last])
        firsts.append(first)
        counts.append(num_tokens)
        slots[row, : len(sequence.slots)] = sequence.slots
        if last == len(sequence.tokens):
            rows.append(len(tokens) - 1)
    starts = np.concatenate([[0], np.cumsum(counts)])
    positions = np.arange(len(tokens)) - np.repeat(starts[:-1] - firsts, counts)
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=positions.astype(np.int32),
        starts=starts.astype(np.int32),
        slots=slots,
        rows=np.array(rows, np.int32),
    )
