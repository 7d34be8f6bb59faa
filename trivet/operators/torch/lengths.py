"""What the host knows of a step without asking the device: how long its sequences are, and where they are stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trivet.base.dtypes import Array

_NOTHING_STORED = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True)
class StepLengths:
    """Lengths of one step's sequences, in the order of the batch; the rows that its tokens take in every cache."""

    query_ends: tuple[int, ...]  # tokens of this step up to the end of each sequence: `starts` without its 0
    kv_lengths: tuple[int, ...]  # positions of each sequence when the step is done
    # int32 [tokens], on the device: rows of a cache seen as [num_slots · slot_tokens, …]. The same in every layer, so
    # they are computed on the host and go over with the step's one copy.
    cache_rows: torch.Tensor = _NOTHING_STORED


def cache_rows(starts: Array, positions: Array, slots: Array, slot_tokens: int) -> Array:
    """Where each token of a batch is stored: int32 [tokens], slot · slot_tokens + place in the slot."""
    sequence = np.repeat(np.arange(len(slots)), np.diff(starts))
    rows: Array = slots[sequence, positions // slot_tokens] * slot_tokens + positions % slot_tokens
    return rows.astype(np.int32)


def step_lengths(starts: Array, positions: Array, rows: torch.Tensor) -> StepLengths:
    """Lengths of a batch's sequences from its own integers, with `rows` as they are on the device."""
    ends = starts[1:]
    return StepLengths(tuple(ends.tolist()), tuple((positions[ends - 1] + 1).tolist()), rows)
