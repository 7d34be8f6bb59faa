"""Queries and keys rotated, keys and values written to their slots: one pass over a step's new tokens.

Of a token nothing is known but its number: its sequence is found in `starts`, its slot by its position.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from trivet.operators.contract import Call
from trivet.operators.triton.launch import Kernel, Launch, Size, Stride, by_name, power_of_two
from trivet.operators.triton.operands import activation, operand, width
from trivet.operators.triton.tiles import Soc, tile


@triton.jit
def sequence_of(starts: tl.tensor, token: tl.tensor, num_sequences: tl.tensor, SEQUENCES: tl.constexpr) -> tl.tensor:
    """The sequence that `token` belongs to: how many sequences end at or before it."""
    ended = 0
    for first in range(0, num_sequences, SEQUENCES):
        sequence = first + tl.arange(0, SEQUENCES)
        ends = tl.load(starts + 1 + sequence, mask=sequence < num_sequences, other=0x7FFFFFFF)
        ended += tl.sum((ends <= token).to(tl.int32), axis=0)
    return ended


@triton.jit
def rotate_heads(
    source: tl.tensor,
    target: tl.tensor,
    turn: tl.tensor,  # cosines, then sines, of this token
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    """One token's heads from `source` to `target`. Dimension i turns with i + HALF; those past 2 · HALF are copied."""
    dim = tl.arange(0, BLOCK)[None, :]
    cos = tl.load(turn + dim, mask=dim < HALF, other=0.0)
    sin = tl.load(turn + HALF + dim, mask=dim < HALF, other=0.0)
    for first_head in range(0, NUM_HEADS, HEADS):
        head = first_head + tl.arange(0, HEADS)[:, None]
        inside = (head < NUM_HEADS) & (dim < HALF)
        at = head * HEAD_DIM + dim
        first = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + at + HALF, mask=inside, other=0.0).to(tl.float32)
        tl.store(target + at, (first * cos - second * sin).to(target.dtype.element_ty), mask=inside)
        tl.store(target + at + HALF, (second * cos + first * sin).to(target.dtype.element_ty), mask=inside)
        if HEAD_DIM > 2 * HALF:
            beyond = tl.arange(0, REST)[None, :]
            left = (head < NUM_HEADS) & (beyond < HEAD_DIM - 2 * HALF)
            at = head * HEAD_DIM + 2 * HALF + beyond
            values = tl.load(source + at, mask=left, other=0.0)
            tl.store(target + at, values.to(target.dtype.element_ty), mask=left)


@triton.jit(do_not_specialize=["num_tokens"])
def rope_kernel(
    x: tl.tensor,  # [num_tokens, NUM_HEADS · HEAD_DIM], as y
    angles: tl.tensor,  # [num_tokens, 2 · HALF], float32
    y: tl.tensor,
    num_tokens: tl.tensor,
    x_stride: tl.tensor,
    angles_stride: tl.tensor,
    y_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row = tl.cast(token, tl.int64)
        turn = angles + row * angles_stride
        rotate_heads(x + row * x_stride, y + row * y_stride, turn, NUM_HEADS, HEAD_DIM, HALF, HEADS, BLOCK, REST)


@triton.jit(do_not_specialize=["num_tokens", "num_sequences", "num_slots"])
def rope_kv_store_kernel(
    q: tl.tensor,  # [num_tokens, NUM_HEADS · HEAD_DIM]
    k: tl.tensor,  # [num_tokens, NUM_KV_HEADS · HEAD_DIM], as v
    v: tl.tensor,
    angles: tl.tensor,  # [num_tokens, 2 · HALF], float32
    rotated: tl.tensor,  # as q
    cache: tl.tensor,  # [2, num_slots, SLOT_TOKENS, NUM_KV_HEADS, HEAD_DIM]: keys, then values
    positions: tl.tensor,  # [num_tokens]
    starts: tl.tensor,  # [num_sequences + 1]
    slots: tl.tensor,  # [num_sequences, max_slots]
    num_tokens: tl.tensor,
    num_sequences: tl.tensor,
    num_slots: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    angles_stride: tl.tensor,
    rotated_stride: tl.tensor,
    slots_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    SLOT_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
    WIDTH: tl.constexpr,
    SEQUENCES: tl.constexpr,
) -> None:
    # The second half of a cache of 16 GiB begins 2³² elements in; slots past 2³¹ elements are ordinary.
    values_start = num_slots.to(tl.int64) * (SLOT_TOKENS * NUM_KV_HEADS * HEAD_DIM)
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row = tl.cast(token, tl.int64)
        turn = angles + row * angles_stride
        rotate_heads(
            q + row * q_stride, rotated + row * rotated_stride, turn, NUM_HEADS, HEAD_DIM, HALF, HEADS, BLOCK, REST
        )
        sequence = sequence_of(starts, token, num_sequences, SEQUENCES)
        if sequence < num_sequences:  # tokens past the last sequence fill up a batch of fixed size: they have no slot
            position = tl.load(positions + token)
            table = slots + sequence.to(tl.int64) * slots_stride
            slot = tl.load(table + position // SLOT_TOKENS).to(tl.int64)
            place = (slot * SLOT_TOKENS + position % SLOT_TOKENS) * (NUM_KV_HEADS * HEAD_DIM)
            rotate_heads(k + row * k_stride, cache + place, turn, NUM_KV_HEADS, HEAD_DIM, HALF, KV_HEADS, BLOCK, REST)
            for first in range(0, NUM_KV_HEADS * HEAD_DIM, WIDTH):
                column = first + tl.arange(0, WIDTH)
                inside = column < NUM_KV_HEADS * HEAD_DIM
                values = tl.load(v + row * v_stride + column, mask=inside, other=0.0)
                tl.store(cache + values_start + place + column, values.to(cache.dtype.element_ty), mask=inside)


def _rope(call: Call, sizes: Mapping[str, int], soc: Soc) -> Launch:
    chosen = tile("rope", activation(call, 0))
    head_dim, half = call.integer("head_dim"), width(call, 1) // 2
    num_heads, block = width(call, 0) // head_dim, power_of_two(half)
    arguments = by_name("x", "angles", "y", strides=("x", "angles", "y")) | {"num_tokens": Size("x")}
    constants = {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "HALF": half,
        "HEADS": min(power_of_two(num_heads), chosen.sizes["elements"] // block),
        "BLOCK": block,
        "REST": power_of_two(max(1, head_dim - 2 * half)),
    }
    return Launch(rope_kernel, soc.programs(chosen.kind), arguments, constants)


def _rope_kv_store(call: Call, sizes: Mapping[str, int], soc: Soc) -> Launch:
    chosen = tile("rope_kv_store", activation(call, 0))
    head_dim, half = call.integer("head_dim"), width(call, 3) // 2
    num_heads, num_kv_heads = width(call, 0) // head_dim, width(call, 1) // head_dim
    block, elements = power_of_two(half), chosen.sizes["elements"]
    operands = ("q", "k", "v", "angles", "cache", "positions", "starts", "slots")
    arguments = by_name(*operands, strides=("q", "k", "v", "angles", "slots"))
    arguments |= {"rotated": "q'", "rotated_stride": Stride("q'")}
    arguments |= {"num_tokens": Size("positions"), "num_sequences": Size("slots"), "num_slots": Size("cache", 1)}
    constants = {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "HALF": half,
        "SLOT_TOKENS": sizes["slot_tokens"],
        "HEADS": min(power_of_two(num_heads), elements // block),
        "KV_HEADS": min(power_of_two(num_kv_heads), elements // block),
        "BLOCK": block,
        "REST": power_of_two(max(1, head_dim - 2 * half)),
        "WIDTH": min(power_of_two(num_kv_heads * head_dim), elements),
        "SEQUENCES": chosen.sizes["sequences"],
    }
    return Launch(rope_kv_store_kernel, soc.programs(chosen.kind), arguments, constants)


def _refuse_rope(call: Call) -> str | None:
    return _refuse_angles(call, width(call, 1))


def _refuse_rope_kv_store(call: Call) -> str | None:
    head_dim = call.integer("head_dim")
    if operand(call, 4).axes[4] != head_dim:
        return f"head_dim is {head_dim}, the cache's {operand(call, 4).axes[4]}"
    if operand(call, 4).dtype == "int8":
        return "the cache is int8: the kernel converts and does not quantise"
    return _refuse_angles(call, width(call, 3))


def _refuse_angles(call: Call, rotary: int) -> str | None:
    head_dim = call.integer("head_dim")
    if width(call, 0) % head_dim:
        return f"width {width(call, 0)} is not a multiple of head_dim {head_dim}"
    if rotary % 2 or rotary > head_dim:
        return f"{rotary} angles are not an even number of at most head_dim {head_dim}"
    return None


KERNELS = (
    Kernel("rope", _refuse_rope, _rope),
    Kernel("rope_kv_store", _refuse_rope_kv_store, _rope_kv_store),
)
