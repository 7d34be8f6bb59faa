"""The highest of a row, as often as it is asked: what the router and the sampler choose with. Equal values keep the
order of their indices; a NaN ranks with +∞, so that it is seen and not skipped."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rank_keys(values: tl.tensor) -> tl.tensor:
    """What values are compared by."""
    return tl.where(values == values, values, float("inf"))


@triton.jit
def first_highest(keys: tl.tensor, free: tl.tensor, index: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Per row of keys [ROWS, BLOCK] the lowest index of the highest key among those that are free. One must be."""
    highest = tl.max(tl.where(free, keys, float("-inf")), axis=1)
    chosen = free & (keys == highest[:, None])
    return tl.min(tl.where(chosen, index, BLOCK), axis=1)
