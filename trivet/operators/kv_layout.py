"""How one stream of keys and values lies inside the slots of the KV pool, and what is in it.

Inside a slot a stream holds, contiguous and in this order:

    keys    [num_kv_heads, slot_tokens / 16, head_dim / pair, 16 tokens, pair]
    values  [num_kv_heads, slot_tokens, head_dim]

Keys of 16 tokens lie side by side, so that a query's scores of 16 tokens are one register and each is one chain of
multiply-adds over head_dim; values are read a token at a time. Both are streamed from front to back. A pair is the
elements of a key that fit a word: 2 of bfloat16, which a shift and a mask turn into floats; 1 of float32.
"""

from __future__ import annotations

import numpy as np

from trivet.base.dtypes import Array

BLOCK_TOKENS = 16


def pack_kv(logical: Array) -> Array:
    """[slots, slot_tokens, 2, num_kv_heads, head_dim] → [slots, elements of the stream], contiguous."""
    num_slots, _, _, heads, head_dim = logical.shape
    pair = _pair(logical)
    keys = logical[:, :, 0].reshape(num_slots, -1, BLOCK_TOKENS, heads, head_dim // pair, pair)
    keys = keys.transpose(0, 3, 1, 4, 2, 5).reshape(num_slots, -1)
    values = logical[:, :, 1].transpose(0, 2, 1, 3).reshape(num_slots, -1)
    return np.ascontiguousarray(np.concatenate([keys, values], axis=1))


def unpack_kv(stored: Array, slot_tokens: int, num_kv_heads: int, head_dim: int) -> Array:
    """The inverse of `pack_kv`."""
    num_slots = stored.shape[0]
    half = num_kv_heads * slot_tokens * head_dim
    pair = _pair(stored)
    keys = stored[:, :half].reshape(num_slots, num_kv_heads, -1, head_dim // pair, BLOCK_TOKENS, pair)
    keys = keys.transpose(0, 2, 4, 1, 3, 5).reshape(num_slots, slot_tokens, num_kv_heads, head_dim)
    values = stored[:, half : 2 * half].reshape(num_slots, num_kv_heads, slot_tokens, head_dim).transpose(0, 2, 1, 3)
    return np.stack([keys, values], axis=2)


def _pair(elements: Array) -> int:
    return 4 // elements.itemsize
