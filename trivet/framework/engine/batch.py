"""The arrays of one step: those of the decodes as they lie, those of the prefills behind them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from trivet.framework.engine.chunk import Chunk
from trivet.framework.engine.decodes import Decodes
from trivet.framework.graph.plan import Batch


def to_batch(decodes: Decodes, prefills: Sequence[Chunk] = ()) -> Batch:
    """The step that computes these in this order; the logits wanted are those of every sequence's last token.

    Its arrays are good until the next step: those of the decodes are changed in place.
    """
    num_decodes = len(decodes)
    slots = decodes.slots_beside([chunk.sequence for chunk in prefills])
    if not prefills:
        each = np.arange(num_decodes + 1, dtype=np.int32)
        return Batch(tokens=decodes.tokens, positions=decodes.positions, starts=each, slots=slots, rows=each[:-1])
    tokens = array("i")
    firsts, counts, rows = [], [], []
    for sequence, num_tokens in prefills:
        first = sequence.num_computed
        last = first + num_tokens
        tokens.extend(sequence.tokens[first:last])
        firsts.append(first)
        counts.append(num_tokens)
        if last == len(sequence.tokens):
            rows.append(num_decodes + len(tokens) - 1)
    starts = np.concatenate([[0], np.cumsum(counts)])
    positions = np.arange(len(tokens)) - np.repeat(starts[:-1] - firsts, counts)
    each = np.arange(num_decodes, dtype=np.int32)
    return Batch(
        tokens=np.concatenate([decodes.tokens, np.array(tokens, np.int32)]),
        positions=np.concatenate([decodes.positions, positions.astype(np.int32)]),
        starts=np.concatenate([each, num_decodes + starts.astype(np.int32)], dtype=np.int32),
        slots=slots,
        rows=np.concatenate([each, np.array(rows, np.int32)]),
    )
