"""Tokens to their experts and back: rows ordered by expert, stably, and weighted sums of what the experts made.

Places come from counts per block of pairs, not from atomics: a row's place, and the order in which a token's parts are
added, depend on the routing alone. A pair is one choice of one token; pair p belongs to token p // CHOSEN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trivet.base.dtypes import DType
from trivet.operators.triton.launch import Launch, Size, by_name, power_of_two
from trivet.operators.triton.tiles import Soc, tile


@triton.jit
def running_sum(counts: tl.tensor, EXPERTS: tl.constexpr, ROW: tl.constexpr) -> tl.tensor:
    """Sums of counts [EXPERTS] up to and including each, in rows of ROW that fit the vector unit's memory.

    By comparison and not by cumsum, whose lowering ends in a library call that exists on the NPU alone.
    """
    ROWS: tl.constexpr = EXPERTS // ROW
    grid = counts.reshape(ROWS, ROW)
    column, row = tl.arange(0, ROW), tl.arange(0, ROWS)
    inner = tl.sum(tl.where(column[None, :, None] <= column[None, None, :], grid[:, :, None], 0), axis=1)
    whole = tl.sum(grid, axis=1)
    outer = tl.sum(tl.where(row[:, None] < row[None, :], whole[:, None], 0), axis=0)
    return (inner + outer[:, None]).reshape(EXPERTS)


@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def count_kernel(
    experts: tl.tensor,  # [num_pairs], int32
    counts: tl.tensor,  # [num_blocks, NUM_EXPERTS], int32
    num_pairs: tl.tensor,
    num_blocks: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,  # power of two that holds NUM_EXPERTS
    PAIRS: tl.constexpr,  # pairs of a block
) -> None:
    expert = tl.arange(0, EXPERTS)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        pair = tl.cast(block, tl.int64) * PAIRS + tl.arange(0, PAIRS)
        chosen = tl.load(experts + pair, mask=pair < num_pairs, other=-1)
        mine = tl.sum((chosen[:, None] == expert[None, :]).to(tl.int32), axis=0)
        tl.store(counts + tl.cast(block, tl.int64) * NUM_EXPERTS + expert, mine, mask=expert < NUM_EXPERTS)


@triton.jit(do_not_specialize=["num_blocks"])
def offset_kernel(
    counts: tl.tensor,  # [num_blocks, NUM_EXPERTS], int32
    offsets: tl.tensor,  # [num_blocks, NUM_EXPERTS], int32: the place of the first pair of this block and expert
    ends: tl.tensor,  # [NUM_EXPERTS], int32: rows up to the end of each expert, as grouped products want them
    num_blocks: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROW: tl.constexpr,  # experts whose sums are found at once; divides EXPERTS
) -> None:
    expert = tl.arange(0, EXPERTS)
    inside = expert < NUM_EXPERTS
    totals = tl.zeros((EXPERTS,), tl.int32)
    for block in range(num_blocks):
        totals += tl.load(counts + tl.cast(block, tl.int64) * NUM_EXPERTS + expert, mask=inside, other=0)
    end = running_sum(totals, EXPERTS, ROW)
    tl.store(ends + expert, end, mask=inside)
    place = end - totals
    for block in range(num_blocks):
        row = tl.cast(block, tl.int64) * NUM_EXPERTS + expert
        tl.store(offsets + row, place, mask=inside)
        place += tl.load(counts + row, mask=inside, other=0)


@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def place_kernel(
    experts: tl.tensor,  # [num_pairs], int32
    offsets: tl.tensor,  # [num_blocks, NUM_EXPERTS], int32
    places: tl.tensor,  # [num_pairs], int32: the row of each pair once rows are ordered by expert
    num_pairs: tl.tensor,
    num_blocks: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    expert = tl.arange(0, EXPERTS)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        pair = tl.cast(block, tl.int64) * PAIRS + tl.arange(0, PAIRS)
        chosen = tl.load(experts + pair, mask=pair < num_pairs, other=-1)
        row = tl.cast(block, tl.int64) * NUM_EXPERTS + expert
        start = tl.load(offsets + row, mask=expert < NUM_EXPERTS, other=0)
        first = tl.sum(tl.where(chosen[:, None] == expert[None, :], start[None, :], 0), axis=1)
        earlier = (chosen[:, None] == chosen[None, :]) & (pair[:, None] > pair[None, :])
        tl.store(places + pair, first + tl.sum(earlier.to(tl.int32), axis=1), mask=pair < num_pairs)


@triton.jit(do_not_specialize=["num_pairs"])
def permute_kernel(
    x: tl.tensor,  # [num_tokens, WIDTH]
    places: tl.tensor,  # [num_pairs], int32
    y: tl.tensor,  # [num_pairs, WIDTH]
    num_pairs: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    CHOSEN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    for pair in range(tl.program_id(0), num_pairs, tl.num_programs(0)):
        source = tl.cast(pair // CHOSEN, tl.int64)
        target = tl.load(places + pair).to(tl.int64)  # pairs · width passes 2³¹ for a long prefill
        for first in range(0, WIDTH, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < WIDTH
            values = tl.load(x + source * x_stride + column, mask=inside, other=0.0)
            tl.store(y + target * y_stride + column, values, mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def unpermute_kernel(
    x: tl.tensor,  # [num_pairs, WIDTH], ordered by expert
    places: tl.tensor,  # [num_pairs], int32
    weights: tl.tensor,  # [num_tokens, CHOSEN], float32
    y: tl.tensor,  # [num_tokens, WIDTH]
    num_tokens: tl.tensor,
    x_stride: tl.tensor,
    weights_stride: tl.tensor,
    y_stride: tl.tensor,
    CHOSEN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row = tl.cast(token, tl.int64)
        for first in range(0, WIDTH, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < WIDTH
            sums = tl.zeros((BLOCK,), tl.float32)
            for choice in range(CHOSEN):
                source = tl.load(places + row * CHOSEN + choice).to(tl.int64)
                weight = tl.load(weights + row * weights_stride + choice)
                sums += weight * tl.load(x + source * x_stride + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(y + row * y_stride + column, sums.to(y.dtype.element_ty), mask=inside)


def order(num_experts: int, soc: Soc) -> tuple[Launch, Launch, Launch]:
    """The launches that find places, in order. Operands: experts [num_pairs] → places [num_pairs], ends [num_experts],
    all int32; counts and offsets [block_count(num_pairs), num_experts] are scratch."""
    row = tile("order", "int32")
    experts = {"NUM_EXPERTS": num_experts, "EXPERTS": power_of_two(num_experts)}
    pairs = {**experts, "PAIRS": _pairs(num_experts)}
    sums = {**experts, "ROW": min(experts["EXPERTS"], row.sizes["row"])}
    blocks = {"num_blocks": Size("counts")}
    sizes = {**blocks, "num_pairs": Size("experts")}
    programs = soc.programs(row.kind)
    return (
        Launch(count_kernel, programs, by_name("experts", "counts") | sizes, pairs),
        # One program: every place depends on every count, and the counts are few.
        Launch(offset_kernel, 1, by_name("counts", "offsets", "ends") | blocks, sums),
        Launch(place_kernel, programs, by_name("experts", "offsets", "places") | sizes, pairs),
    )


def block_count(num_pairs: int, num_experts: int) -> int:
    """How many blocks `order` counts `num_pairs` in: the rows of its scratch."""
    return -(-num_pairs // _pairs(num_experts))


def permute(width: int, chosen: int, dtype: DType, soc: Soc) -> Launch:
    """Operands: x [num_tokens, width], places → y [num_tokens · chosen, width], rows ordered by expert."""
    row = tile("permute", dtype)
    arguments = by_name("x", "places", "y", strides=("x", "y")) | {"num_pairs": Size("places")}
    return Launch(permute_kernel, soc.programs(row.kind), arguments, _columns(width, chosen, row.sizes["elements"]))


def unpermute(width: int, chosen: int, dtype: DType, soc: Soc) -> Launch:
    """Operands: x [num_tokens · chosen, width], places, weights [num_tokens, chosen] float32 → y [num_tokens, width]:
    the weighted sum of each token's rows, in the order of its choices."""
    row = tile("unpermute", dtype)
    arguments = by_name("x", "places", "weights", "y", strides=("x", "weights", "y")) | {"num_tokens": Size("y")}
    return Launch(unpermute_kernel, soc.programs(row.kind), arguments, _columns(width, chosen, row.sizes["elements"]))


def _pairs(num_experts: int) -> int:
    sizes = tile("order", "int32").sizes
    return min(sizes["pairs"], sizes["elements"] // power_of_two(num_experts))


def _columns(width: int, chosen: int, elements: int) -> dict[str, int]:
    return {"CHOSEN": chosen, "WIDTH": width, "BLOCK": min(power_of_two(width), elements)}
