"""Random inputs that contracts share: sizes that catch edges, values of a sensible scale, ragged batches over slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trivet.base.dtypes import Array, DType, cast
from trivet.operators.contract import Axis, Layout, TensorSpec

# One, odd, one past a block of 16, a whole number of panels and one past it, more rows than a register tile holds.
ROWS = (1, 3, 17, 40)
WIDTHS = (1, 15, 33, 64, 130)
HEAD_DIMS = (2, 16, 34, 64)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, scale: float = 1.0) -> Array:
    values = (rng.standard_normal(shape) * scale).astype(np.float32)
    return cast(values, "float32", dtype)


def spec(axes: tuple[Axis, ...], dtype: DType, layout: Layout = "rows") -> TensorSpec:
    return TensorSpec(axes, dtype, layout)


@dataclass(frozen=True)
class Ragged:
    """A batch of sequences at different depths, their slots shuffled over the pool."""

    positions: Array  # [tokens]
    starts: Array  # [sequences + 1]
    slots: Array  # [sequences, max slots]
    num_slots: int
    context: int  # positions in the cache that are read, each once for all new tokens of its sequence
    attended: int  # positions that are multiplied, for each token its own


def ragged(rng: np.random.Generator, slot_tokens: int, lengths: list[tuple[int, int]]) -> Ragged:
    """A batch of sequences given as (positions already in the cache, new tokens)."""
    ends = [past + new for past, new in lengths]
    counts = [-(-end // slot_tokens) for end in ends]
    num_slots = sum(counts) + 2
    order = rng.permutation(num_slots).astype(np.int32)
    slots = np.zeros((len(lengths), max(counts)), np.int32)
    for i, count in enumerate(counts):
        slots[i, :count], order = order[:count], order[count:]
    positions = np.concatenate([np.arange(past, past + new) for past, new in lengths]).astype(np.int32)
    return Ragged(
        positions=positions,
        starts=np.cumsum([0] + [new for _, new in lengths]).astype(np.int32),
        slots=slots,
        num_slots=num_slots,
        context=sum(ends),
        attended=int((positions + 1).sum()),
    )
