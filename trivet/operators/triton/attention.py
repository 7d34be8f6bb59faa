"""Blockwise attention over slots: keys and values are streamed a block at a time, decode and prefill alike.

A token's answer depends on its own sequence alone. Blocks have one size and one order, starting at position 0; a block
wholly in a token's future multiplies its sums by exactly 1 and adds exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from trivet.operators.contract import Call
from trivet.operators.triton.launch import Kernel, Launch, Size, by_name, power_of_two
from trivet.operators.triton.operands import activation, operand, width
from trivet.operators.triton.tiles import Soc, tile


@triton.jit
def sequence_of_block(starts: tl.tensor, block: tl.tensor, num_sequences: tl.tensor, TOKENS: tl.constexpr,
                      SEQUENCES: tl.constexpr) -> tl.tensor:  # fmt: skip
    """The sequence whose tokens block number `block` holds.

    Sequence s owns the blocks from starts[s] // TOKENS + s on: at least as many as it needs, and no list of them has
    to be made for a step.
    """
    begun = 0
    for first in range(0, num_sequences, SEQUENCES):
        sequence = first + tl.arange(0, SEQUENCES)
        start = tl.load(starts + sequence, mask=sequence < num_sequences, other=0x3FFFFFFF)
        begun += tl.sum((start // TOKENS + sequence <= block).to(tl.int32), axis=0)
    return begun - 1


@triton.jit(do_not_specialize=["num_tokens", "num_sequences", "num_slots"])
def attention_kernel(
    q: tl.tensor,  # [num_tokens, NUM_KV_HEADS · GROUP · HEAD_DIM]
    cache: tl.tensor,  # [2, num_slots, SLOT_TOKENS, NUM_KV_HEADS, HEAD_DIM]: keys, then values
    y: tl.tensor,  # as q
    positions: tl.tensor,  # [num_tokens]
    starts: tl.tensor,  # [num_sequences + 1]
    slots: tl.tensor,  # [num_sequences, max_slots]
    num_tokens: tl.tensor,
    num_sequences: tl.tensor,
    num_slots: tl.tensor,
    q_stride: tl.tensor,
    y_stride: tl.tensor,
    slots_stride: tl.tensor,
    scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads that share a kv head
    HEAD_DIM: tl.constexpr,
    SLOT_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,  # query tokens held at once
    HEADS: tl.constexpr,  # power of two that holds GROUP
    DIM: tl.constexpr,  # power of two that holds HEAD_DIM
    BLOCK: tl.constexpr,  # positions held at once; divides SLOT_TOKENS
    SEQUENCES: tl.constexpr,
) -> None:
    ROW: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    values = cache + num_slots.to(tl.int64) * (SLOT_TOKENS * ROW)
    dim = tl.arange(0, DIM)
    inner = tl.arange(0, BLOCK)
    num_blocks = num_tokens // TOKENS + num_sequences
    for work in range(tl.program_id(0), num_blocks * NUM_KV_HEADS, tl.num_programs(0)):
        kv_head = work % NUM_KV_HEADS
        number = work // NUM_KV_HEADS
        sequence = sequence_of_block(starts, number, num_sequences, TOKENS, SEQUENCES)
        start = tl.load(starts + sequence)
        end = tl.load(starts + sequence + 1)
        first = start + (number - start // TOKENS - sequence).to(tl.int64) * TOKENS
        if first < end:
            token = first + tl.arange(0, TOKENS)
            position = tl.load(positions + token, mask=token < end, other=0)
            # Three axes and not rows · heads: each is a plain stride, which the NPU copies without gathering.
            index = token[:, None, None]
            head = tl.arange(0, HEADS)[None, :, None]
            held = (index < end) & (head < GROUP) & (dim[None, None, :] < HEAD_DIM)
            at = (kv_head * GROUP + head) * HEAD_DIM + dim[None, None, :]
            queries = tl.load(q + index * q_stride + at, mask=held, other=0.0).reshape(TOKENS * HEADS, DIM)
            limit = (position[:, None] + tl.zeros((TOKENS, HEADS), tl.int32)).reshape(TOKENS * HEADS)
            # Always true, and needed: a matrix loaded by three axes goes straight into L1, each token into fractals of
            # its own, and bishengir-compile 1.2.0 multiplies it as if it were one. What was selected comes from UB.
            queries = tl.where(limit[:, None] >= 0, queries, 0.0)
            highest = tl.full((TOKENS * HEADS,), float("-inf"), tl.float32)
            total = tl.zeros((TOKENS * HEADS,), tl.float32)
            sums = tl.zeros((TOKENS * HEADS, DIM), tl.float32)
            table = slots + sequence.to(tl.int64) * slots_stride
            context = tl.max(position, axis=0) + 1
            for past in range(0, context, BLOCK):
                slot = tl.load(table + past // SLOT_TOKENS).to(tl.int64)
                place = (slot * SLOT_TOKENS + past % SLOT_TOKENS) * ROW + kv_head * HEAD_DIM
                # What lies past the context was never written: as zero it can be multiplied, as NaN it could not.
                written = (past + inner < context)[:, None] & (dim < HEAD_DIM)[None, :]
                tile_at = inner[:, None] * ROW + dim[None, :]
                keys = tl.load(cache + place + tile_at, mask=written, other=0.0)
                scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
                scores = tl.where((past + inner)[None, :] <= limit[:, None], scores, float("-inf"))
                higher = tl.maximum(highest, tl.max(scores, axis=1))
                weights = tl.exp(scores - higher[:, None])
                fading = tl.exp(highest - higher)
                total = total * fading + tl.sum(weights, axis=1)
                block = tl.load(values + place + tile_at, mask=written, other=0.0)
                sums = sums * fading[:, None] + tl.dot(weights.to(block.dtype), block, input_precision="ieee")
                highest = higher
            answer = (sums / total[:, None]).reshape(TOKENS, HEADS, DIM)
            tl.store(y + index * y_stride + at, answer.to(y.dtype.element_ty), mask=held)


def _attention(call: Call, sizes: Mapping[str, int], soc: Soc) -> Launch:
    chosen = tile("attention", activation(call, 0))
    num_kv_heads, head_dim = _kv_heads(call)
    group = width(call, 0) // (num_kv_heads * head_dim)
    heads, slot_tokens = power_of_two(group), sizes["slot_tokens"]
    arguments = by_name("q", "cache", "y", "positions", "starts", "slots", strides=("q", "y", "slots"))
    arguments |= {"num_tokens": Size("positions"), "num_sequences": Size("slots"), "num_slots": Size("cache", 1)}
    arguments["scale"] = call.number("scale")
    constants = {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "SLOT_TOKENS": slot_tokens,
        "TOKENS": chosen.sizes["queries"] // heads,
        "HEADS": heads,
        "DIM": max(16, power_of_two(head_dim)),
        "BLOCK": _block(slot_tokens, chosen.sizes["positions"]),
        "SEQUENCES": chosen.sizes["sequences"],
    }
    return Launch(attention_kernel, soc.programs(chosen.kind), arguments, constants)


def _block(slot_tokens: int, most: int) -> int:
    """The largest power of two up to `most` that divides a slot, so that a block never lies in two slots."""
    return min(most, slot_tokens & -slot_tokens)


def _kv_heads(call: Call) -> tuple[int, int]:
    num_kv_heads, head_dim = operand(call, 1).axes[3:]
    assert isinstance(num_kv_heads, int) and isinstance(head_dim, int)
    return num_kv_heads, head_dim


def _refuse(call: Call) -> str | None:
    num_kv_heads, head_dim = _kv_heads(call)
    chosen = tile("attention", activation(call, 0))
    if activation(call, 0) != activation(call, 1):
        return f"q is {activation(call, 0)}, the cache {activation(call, 1)}: a product takes one dtype"
    if width(call, 0) % (num_kv_heads * head_dim):
        return f"q's width {width(call, 0)} is not a multiple of {num_kv_heads} kv heads of {head_dim}"
    group = width(call, 0) // (num_kv_heads * head_dim)
    if power_of_two(group) > chosen.sizes["queries"]:
        return f"{group} query heads share a kv head, the tile holds {chosen.sizes['queries']}"
    if head_dim > chosen.sizes["head_dim"]:
        return f"head_dim {head_dim} exceeds the tile's {chosen.sizes['head_dim']}"
    return None


KERNELS = (Kernel("attention", _refuse, _attention),)
