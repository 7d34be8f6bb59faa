"""The highest logits of a row and where they are: all that sampling needs of a vocabulary.

A row is cut into blocks, each block gives its K highest, and the same kernel then chooses among those. Of equal logits
the lower token wins: candidates keep the order of the vocabulary from the first pass to the second.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trivet.base.dtypes import DType
from trivet.operators.triton.launch import Argument, Launch, Size, Stride, power_of_two
from trivet.operators.triton.tiles import Soc, tile
from trivet.operators.triton.top import first_highest, rank_keys


@triton.jit(do_not_specialize=["num_rows"])
def top_kernel(
    values: tl.tensor,  # [num_rows, WIDTH]
    tokens: tl.tensor,  # [num_rows, WIDTH], int32: which token each value is of; unread when the values are a row's own
    top_values: tl.tensor,  # [num_rows, blocks of a row · COUNT], float32, highest first in each block
    top_tokens: tl.tensor,  # as top_values, int32
    num_rows: tl.tensor,
    values_stride: tl.tensor,
    tokens_stride: tl.tensor,
    top_values_stride: tl.tensor,
    top_tokens_stride: tl.tensor,
    WIDTH: tl.constexpr,
    COUNT: tl.constexpr,
    HAS_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOICES: tl.constexpr,  # power of two that holds COUNT
) -> None:
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    column = tl.arange(0, BLOCK)[None, :]
    choice = tl.arange(0, CHOICES)[None, :]
    for work in range(tl.program_id(0), num_rows * BLOCKS, tl.num_programs(0)):
        row = tl.cast(work // BLOCKS, tl.int64)
        block = work % BLOCKS
        at = block * BLOCK + column
        inside = at < WIDTH
        scores = tl.load(values + row * values_stride + at, mask=inside, other=float("-inf")).to(tl.float32)
        if HAS_TOKENS:
            token = tl.load(tokens + row * tokens_stride + at, mask=inside, other=0)
        else:
            token = at
        keys = rank_keys(scores)
        # What lies past the row ranks behind all of it, −∞ included, and is chosen only when nothing else is left.
        free = column >= 0
        best = tl.full((1, CHOICES), float("-inf"), tl.float32)
        whose = tl.zeros((1, CHOICES), tl.int32)
        for i in range(COUNT):
            index = first_highest(keys, free, column, BLOCK)[:, None]
            is_it = column == index
            best = tl.where(choice == i, tl.sum(tl.where(is_it, scores, 0.0), axis=1)[:, None], best)
            whose = tl.where(choice == i, tl.sum(tl.where(is_it, token, 0), axis=1)[:, None], whose)
            free = free & (column != index)
        kept = choice < COUNT
        tl.store(top_values + row * top_values_stride + block * COUNT + choice, best, mask=kept)
        tl.store(top_tokens + row * top_tokens_stride + block * COUNT + choice, whose, mask=kept)


def top(vocab_size: int, count: int, dtype: DType, soc: Soc) -> tuple[Launch, Launch]:
    """Operands: logits [num_rows, vocab_size] → values float32, tokens int32 [num_rows, count], highest first.

    `candidate_values` and `candidate_tokens` [num_rows, candidates(vocab_size, count)] are scratch.
    """
    row = tile("top", dtype)
    assert 0 < count <= min(vocab_size, row.sizes["count"]), f"{count} of {vocab_size} logits"
    assert candidates(vocab_size, count) <= row.sizes["elements"], f"{vocab_size} logits are too many for two passes"
    whole = {
        "values": "logits",
        "tokens": "candidate_tokens",
        "top_values": "candidate_values",
        "top_tokens": "candidate_tokens",
    }
    rest = {
        "values": "candidate_values",
        "tokens": "candidate_tokens",
        "top_values": "values",
        "top_tokens": "tokens",
    }
    programs = soc.programs(row.kind)
    return (
        _pass(whole, programs, vocab_size, count, False, row.sizes["elements"]),
        _pass(rest, programs, candidates(vocab_size, count), count, True, row.sizes["elements"]),
    )


def candidates(vocab_size: int, count: int) -> int:
    """How many logits of a row the first pass leaves."""
    return -(-vocab_size // min(power_of_two(vocab_size), tile("top", "float32").sizes["elements"])) * count


def _pass(operands: dict[str, str], programs: int, width: int, count: int, has_tokens: bool, elements: int) -> Launch:
    strides = {f"{name}_stride": Stride(operand) for name, operand in operands.items()}
    arguments: dict[str, Argument] = {**operands, **strides, "num_rows": Size(operands["values"])}
    constants = {
        "WIDTH": width,
        "COUNT": count,
        "HAS_TOKENS": has_tokens,
        "BLOCK": max(power_of_two(count), min(power_of_two(width), elements)),
        "CHOICES": power_of_two(count),
    }
    return Launch(top_kernel, programs, arguments, constants)
