"""The ragged batch as the device's operators want to be told of it: row numbers, and runs of equal sequences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import groupby, pairwise

import torch

from trivet.operators.torch.lengths import StepLengths


def equal_runs(lengths: StepLengths) -> Iterator[tuple[slice, slice, int]]:
    """Neighbours with equally many new tokens: their sequences, their tokens, new tokens of each."""
    counts = [end - start for start, end in pairwise((0, *lengths.query_ends))]
    sequence = token = 0
    for count, members in groupby(counts):
        num_sequences = len(list(members))
        end = token + num_sequences * count
        yield slice(sequence, sequence + num_sequences), slice(token, end), count
        sequence, token = sequence + num_sequences, end


def row_numbers(num_tokens: int) -> torch.Tensor:
    """int32 0, 1, … num_tokens - 1 on the device, a part of a tensor that is kept."""
    return kept_numbers(1 << (num_tokens - 1).bit_length())[:num_tokens]


@cache
def kept_numbers(size: int) -> torch.Tensor:
    """As `row_numbers`, made once for each size: sizes are powers of two, so that there are few."""
    return torch.arange(size, dtype=torch.int32).to("npu")
