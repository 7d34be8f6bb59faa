"""The few sizes that steps are padded to where a device wants fixed shapes, and the padding.

A padded token is a sequence of its own in the spare slots, behind all slots that sequences are given: what it writes
nobody reads but other padding, so it cannot change an answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from trivet.base.dtypes import Array
from trivet.framework.graph.plan import Batch

# Rows of one block of the cube unit, which computes 16 × 16 × 16 at a time (16 bit): a product of fewer rows takes no
# less. Below it, attention and the vector units still pay for every row.
_CUBE_ROWS = 16
_SIZES_PER_OCTAVE = 4  # so that padding is at most a fifth of a step of more than 64 rows


def bucket_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, multiples of 16 up to 64, then four to each doubling; the last is `most` itself."""
    return (*_sizes_below(most), most)


def _sizes_below(most: int) -> Iterator[int]:
    size = 1
    while size < most:
        yield size
        octave = 1 << (size.bit_length() - 1)
        size += max(_CUBE_ROWS, octave // _SIZES_PER_OCTAVE) if size >= _CUBE_ROWS else size


def bucket_of(size: int, sizes: tuple[int, ...]) -> int:
    """The smallest of `sizes` that holds `size`."""
    return sizes[bisect_left(sizes, size)]


def most_padding(sizes: tuple[int, ...]) -> int:
    """The most rows that padding to one of `sizes` adds."""
    return max((after - before - 1 for before, after in pairwise(sizes)), default=0)


def padded(batch: Batch, num_tokens: int, num_rows: int, max_slots: int, spare_slot: int, slot_tokens: int) -> Batch:
    """`batch` with `num_tokens` tokens, `num_rows` wanted rows and slots `max_slots` wide.

    Its own tokens, sequences and rows come first, unchanged. Padding takes one row after the other of the spare slots
    from `spare_slot` on; the rows that are added name the last token.
    """
    sequences, own = len(batch.slots), batch.slots[:, :max_slots]
    more = np.arange(num_tokens - len(batch.tokens), dtype=np.int32)
    slots = np.zeros((sequences + len(more), max_slots), np.int32)
    slots[:sequences, : own.shape[1]] = own
    slots[sequences:] = spare_slot + (more // slot_tokens)[:, None]
    return Batch(
        tokens=_extended(batch.tokens, np.zeros_like(more)),
        positions=_extended(batch.positions, more % slot_tokens),
        starts=_extended(batch.starts, batch.starts[-1] + 1 + more),
        slots=slots,
        rows=_extended(batch.rows, np.full(num_rows - len(batch.rows), num_tokens - 1, np.int32)),
    )


def _extended(array: Array, more: Array) -> Array:
    return np.concatenate([array, more], dtype=np.int32)
