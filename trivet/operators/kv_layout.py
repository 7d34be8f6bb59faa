"""How one stream of keys and values lies inside the slots of the KV pool, and what is in it.

A slot has, contiguous and in this order, the keys of a stream and its values, both as blocks of 16 tokens:

    keys    [num_kv_heads, slot_tokens / 16] blocks of [head_dim / pair, 16 tokens, pair]
    values  [num_kv_heads, slot_tokens / 16] blocks of [16 tokens / pair, head_dim, pair]

Keys of 16 tokens lie side by side, so that a query's scores of 16 tokens are one register and each is one chain of
multiply-adds over head_dim; values are read a pair of tokens at a time. Both are streamed from front to back. A pair is
1 of float32; 2 of bfloat16, which fit a word, and which one instruction multiplies and adds, or a shift and a mask turn
into floats; 2 of int8, as an instruction multiplies and adds two numbers of 16 bits.

In int8 a block begins with its scales, [head_dim / 64, 16 tokens] in bfloat16: what is read together lies together.
A scale is of one token, so that no token's bits depend on which others share its block.
"""

from __future__ import annotations

import numpy as np

from trivet.base.dtypes import GROUP, Array, integers_and_scales

BLOCK_TOKENS = 16
_SCALE_BYTES = 2


def pack_kv(logical: Array) -> Array:
    """[slots, slot_tokens, 2, num_kv_heads, head_dim] → [slots, elements of the stream], contiguous.

    Of int8 (uint8) the last axis is rows as `trivet.base.dtypes` has them, and an element a byte.
    """
    parts = [_halves(logical)] if logical.dtype != np.uint8 else _halves_of_int8(logical)
    halves = [np.concatenate(each, axis=-1).reshape(len(logical), -1) for each in zip(*parts, strict=True)]
    return np.ascontiguousarray(np.concatenate(halves, axis=1))


def unpack_kv(stored: Array, slot_tokens: int, num_kv_heads: int, head_dim: int) -> Array:
    """The inverse of `pack_kv`."""
    blocks = stored.reshape(len(stored), 2, num_kv_heads, slot_tokens // BLOCK_TOKENS, -1)
    if stored.dtype != np.uint8:
        return _unpacked(blocks, head_dim)
    num_groups = -(-head_dim // GROUP)
    end = num_groups * BLOCK_TOKENS * _SCALE_BYTES
    scales = np.ascontiguousarray(blocks[..., :end]).view(np.uint16)
    by_token = np.stack([_tokens(_along(scales[:, half], num_groups, 1)) for half in (0, 1)], axis=2)
    return np.concatenate([_unpacked(blocks[..., end:], head_dim), by_token.view(np.uint8)], axis=-1)


def _halves_of_int8(logical: Array) -> list[tuple[Array, Array]]:
    """The scales of keys and of values, then their integers."""
    integers, scales = integers_and_scales(logical)
    across = [_flat(_across(_blocks(scales[:, :, half]), 1)).view(np.uint8) for half in (0, 1)]
    return [(across[0], across[1]), _halves(integers.view(np.uint8))]


def _halves(elements: Array) -> tuple[Array, Array]:
    """Keys and values, [slots, heads, blocks, elements of a block]."""
    keys, values = (_blocks(elements[:, :, half]) for half in (0, 1))
    pair = _pair(elements)
    return _flat(_across(keys, pair)), _flat(_in_pairs(values, pair))


def _unpacked(blocks: Array, head_dim: int) -> Array:
    pair = _pair(blocks)
    keys = _along(blocks[:, 0], head_dim, pair)
    values = blocks[:, 1].reshape(*keys.shape[:-2], -1, head_dim, pair).swapaxes(-2, -1).reshape(*keys.shape)
    return np.stack([_tokens(keys), _tokens(values)], axis=2)


def _blocks(tokens: Array) -> Array:
    """[slots, tokens, heads, width] → [slots, heads, blocks, 16, width]."""
    slots, _, heads, width = tokens.shape
    return tokens.reshape(slots, -1, BLOCK_TOKENS, heads, width).transpose(0, 3, 1, 2, 4)


def _tokens(blocks: Array) -> Array:
    """The inverse of `_blocks`."""
    slots, heads, num_blocks, tokens, width = blocks.shape
    return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1, 4)).reshape(slots, num_blocks * tokens, heads, width)


def _across(blocks: Array, pair: int) -> Array:
    """[…, 16, width] → […, width / pair, 16, pair]: the tokens of a block side by side."""
    *outer, tokens, width = blocks.shape
    return blocks.reshape(*outer, tokens, width // pair, pair).swapaxes(-3, -2)


def _in_pairs(blocks: Array, pair: int) -> Array:
    """[…, 16, width] → […, 16 / pair, width, pair]: tokens side by side."""
    *outer, tokens, width = blocks.shape
    return blocks.reshape(*outer, tokens // pair, pair, width).swapaxes(-2, -1)


def _along(flat: Array, width: int, pair: int) -> Array:
    """The inverse of `_across`, of blocks in one piece each."""
    paired = flat.reshape(*flat.shape[:-1], width // pair, BLOCK_TOKENS, pair)
    return paired.swapaxes(-3, -2).reshape(*flat.shape[:-1], BLOCK_TOKENS, width)


def _flat(blocks: Array) -> Array:
    return np.ascontiguousarray(blocks).reshape(*blocks.shape[:3], -1)


def _pair(elements: Array) -> int:
    return 1 if elements.itemsize == 4 else 2
