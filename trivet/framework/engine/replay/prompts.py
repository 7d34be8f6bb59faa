"""Prompts for a trace that has none: with as much in common as it says, and nothing else."""

from __future__ import annotations

import numpy as np

from trivet.framework.engine.replay.trace import Arrival

_FIRST_ID = 3  # lower ones may end a text


def prompt_of(arrival: Arrival, order: int, vocab_size: int) -> tuple[int, ...]:
    """Token ids for the arrival, the `order`th: equal blocks are equal tokens, and the rest is its own."""
    shared = [_drawn((0, block), arrival.block_tokens, vocab_size) for block in arrival.blocks]
    own = _drawn((1, order), max(0, arrival.num_prompt - sum(map(len, shared))), vocab_size)
    return tuple(np.concatenate([*shared, own]).tolist()[: arrival.num_prompt])


def _drawn(seed: tuple[int, int], count: int, vocab_size: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(min(_FIRST_ID, vocab_size - 1), vocab_size, count)
