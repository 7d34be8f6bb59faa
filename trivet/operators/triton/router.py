"""Which experts a token goes to: the K highest logits of its row and their softmax weights, all in float32.

No atomics and no sort: a row is searched K times, and of equal logits the lower expert wins, on every device.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trivet.operators.triton.launch import Launch, Size, by_name, power_of_two
from trivet.operators.triton.tiles import Soc, tile
from trivet.operators.triton.top import first_highest, rank_keys


@triton.jit(do_not_specialize=["num_tokens"])
def router_topk_kernel(
    logits: tl.tensor,  # [num_tokens, NUM_EXPERTS], float32
    weights: tl.tensor,  # [num_tokens, CHOSEN], float32
    experts: tl.tensor,  # [num_tokens, CHOSEN], int32
    num_tokens: tl.tensor,
    logits_stride: tl.tensor,
    weights_stride: tl.tensor,
    experts_stride: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    IS_RENORMALISED: tl.constexpr,  # weights of a token add up to 1; else they are its shares among all experts
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,  # power of two that holds CHOSEN
    TOKENS: tl.constexpr,
) -> None:
    expert = tl.arange(0, BLOCK)[None, :]
    choice = tl.arange(0, WIDTH)[None, :]
    for first in range(tl.program_id(0) * TOKENS, num_tokens, tl.num_programs(0) * TOKENS):
        token = tl.cast(first, tl.int64) + tl.arange(0, TOKENS)[:, None]
        inside = (token < num_tokens) & (expert < NUM_EXPERTS)
        values = tl.load(logits + token * logits_stride + expert, mask=inside, other=float("-inf"))
        keys = rank_keys(values)
        free = (expert < NUM_EXPERTS) & (token >= 0)
        taken = tl.zeros((TOKENS, WIDTH), tl.int32)
        scores = tl.full((TOKENS, WIDTH), float("-inf"), tl.float32)
        for i in range(CHOSEN):
            index = first_highest(keys, free, expert, BLOCK)
            is_it = expert == index[:, None]
            score = tl.sum(tl.where(is_it, values, 0.0), axis=1)
            taken = tl.where(choice == i, index[:, None], taken)
            scores = tl.where(choice == i, score[:, None], scores)
            free = free & (expert != index[:, None])
        highest = tl.max(scores, axis=1)[:, None]
        parts = tl.exp(scores - highest)
        if IS_RENORMALISED:
            total = tl.sum(parts, axis=1)
        else:
            total = tl.sum(tl.where(expert < NUM_EXPERTS, tl.exp(values - highest), 0.0), axis=1)
        kept = (token < num_tokens) & (choice < CHOSEN)
        tl.store(weights + token * weights_stride + choice, parts / total[:, None], mask=kept)
        tl.store(experts + token * experts_stride + choice, taken, mask=kept)


def router_topk(num_experts: int, chosen: int, is_renormalised: bool, soc: Soc) -> Launch:
    """Operands: logits [num_tokens, num_experts] float32 → weights float32, experts int32 [num_tokens, chosen]."""
    assert 0 < chosen <= num_experts, f"{chosen} of {num_experts} experts"
    row, block = tile("router_topk", "float32"), power_of_two(num_experts)
    operands = ("logits", "weights", "experts")
    arguments = by_name(*operands, strides=operands) | {"num_tokens": Size("logits")}
    constants = {
        "NUM_EXPERTS": num_experts,
        "CHOSEN": chosen,
        "IS_RENORMALISED": is_renormalised,
        "BLOCK": block,
        "WIDTH": power_of_two(chosen),
        "TOKENS": max(1, row.sizes["elements"] // block),
    }
    return Launch(router_topk_kernel, soc.programs(row.kind), arguments, constants)
