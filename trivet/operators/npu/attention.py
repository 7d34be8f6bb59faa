"""Attention over the blocks of the cache: npu_fused_infer_attention_score, paged, a slot being one of its blocks.

Two variants, because its ragged layout (TND) takes heads of 128 or 192 only: `ragged` is one call for the step, and
`batched` (BSND) is one call for each run of neighbours with equally many new tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

import torch
import torch_npu

from trivet.base.errors import GraphError
from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.ragged import equal_runs
from trivet.operators.npu.refuse import HALVES, refuse_formats, refuse_heads, width_of
from trivet.operators.torch.call import Run, given
from trivet.operators.torch.lengths import StepLengths

# Limits of npu_fused_infer_attention_score on A2 and A3. One more follows from these: the keys of a token are at most
# 65535 wide where blocks lie as [block_size, kv_heads · head_dim].
_HEADS = 256
_QUERIES_PER_KV_HEAD = 64
_CONTEXT = 262144  # positions of a sequence with one new token
_CACHE_ELEMENTS = 2**31 - 1  # of the keys, and of the values
_RAGGED_HEAD_DIMS = (128, 192)  # TND without a separate part for the rotation
_RAGGED_BLOCKS = (16, 1024)  # TND: block sizes in steps of, and at most
_RAGGED_SEQUENCES = 4096
_BATCHED_HEAD_DIM = 512
_BATCHED_BLOCKS = (128, 512)  # more than one new token; a decode alone would take steps of 16
_BATCHED_SEQUENCES = 65536
_BATCHED_WIDTH = 65535  # BSND: heads · head_dim stays below

_MASK_SIZE = 2048  # the compressed mask of sparse_mode 2, 3 and 4
_NO_MASK, _CAUSAL_FROM_THE_END = 0, 3  # sparse_mode


def _kv_heads(call: Call) -> int:
    stored = call.inputs[1]
    assert stored is not None
    kv_heads = stored.axes[3]
    assert isinstance(kv_heads, int)
    return kv_heads


def _refuse(call: Call) -> str | None:
    kv_heads, head_dim = _kv_heads(call), width_of(call, 1)
    num_heads = width_of(call, 0) // head_dim
    if num_heads % kv_heads or num_heads > _QUERIES_PER_KV_HEAD * kv_heads:
        return f"{num_heads} heads over {kv_heads}, the operator takes whole groups of up to {_QUERIES_PER_KV_HEAD}"
    if num_heads > _HEADS:
        return f"{num_heads} heads, the operator takes up to {_HEADS}"
    return refuse_heads(call, 0, head_dim) or refuse_formats(call, ("q", "cache", "y"), HALVES)


def _refuse_ragged(call: Call) -> str | None:
    head_dim = width_of(call, 1)
    if head_dim not in _RAGGED_HEAD_DIMS:
        return f"head_dim {head_dim}, the layout TND takes {' or '.join(map(str, _RAGGED_HEAD_DIMS))}"
    return _refuse(call)


def _refuse_batched(call: Call) -> str | None:
    width, head_dim = width_of(call, 0), width_of(call, 1)
    if head_dim % 16 or head_dim > _BATCHED_HEAD_DIM:
        return f"head_dim {head_dim}, the layout BSND takes multiples of 16 up to {_BATCHED_HEAD_DIM}"
    if width >= _BATCHED_WIDTH:
        return f"q is {width} wide, the layout BSND takes less than {_BATCHED_WIDTH}"
    return _refuse(call)


def _check_sizes(call: Call, sizes: Mapping[str, int], blocks: tuple[int, int], max_sequences: int) -> None:
    """Raises GraphError where a plan is bound with sizes that the operator does not take.

    A plan that does not say how many sequences or slots of one it may have is not checked for them.
    """
    slot_tokens, (step, most) = sizes["slot_tokens"], blocks
    sequences, context = sizes.get("sequences", 0), sizes.get("max_slots", 0) * slot_tokens
    elements = sizes["num_slots"] * slot_tokens * _kv_heads(call) * width_of(call, 1)
    if slot_tokens % step or slot_tokens > most:
        raise GraphError(f"attention: slots of {slot_tokens} tokens, wanted a multiple of {step} up to {most}")
    if sequences > max_sequences:
        raise GraphError(f"attention: {sequences} sequences in a step, wanted up to {max_sequences}")
    if context > _CONTEXT:
        raise GraphError(f"attention: {context} positions of one sequence, wanted up to {_CONTEXT}")
    if elements > _CACHE_ELEMENTS:
        raise GraphError(f"attention: {elements} elements of keys, wanted up to {_CACHE_ELEMENTS}", "have fewer slots")


@cache
def causal_mask() -> torch.Tensor:
    """bool [2048, 2048] on the device, true where a query may not look: the operator lays it over any length."""
    return torch.ones((_MASK_SIZE, _MASK_SIZE), dtype=torch.bool).triu(diagonal=1).to("npu")


def attend(
    q: torch.Tensor,  # TND: [tokens, heads, head_dim], BSND: [sequences, new tokens, heads, head_dim]
    stored: torch.Tensor,  # [2, num_slots, slot_tokens, kv_heads, head_dim]
    slots: torch.Tensor,  # int32 [sequences, max slots]
    query_lengths: list[int],  # TND: the ends, counted through the batch; BSND: of each sequence
    kv_lengths: list[int],  # of each sequence in either layout, because the cache is paged
    *,
    scale: float,
    layout: Literal["TND", "BSND"],
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention, shaped as q: causal from the last position backwards with the mask, over all without it."""
    keys, values = stored.flatten(start_dim=3)
    y: torch.Tensor
    y, _ = torch_npu.npu_fused_infer_attention_score(
        query=q,
        key=keys,
        value=values,
        atten_mask=mask,
        actual_seq_lengths=query_lengths,
        actual_seq_lengths_kv=kv_lengths,
        block_table=slots,
        num_heads=q.shape[-2],
        scale=scale,  # the default is 1.0
        input_layout=layout,
        num_key_value_heads=stored.shape[3],
        sparse_mode=_NO_MASK if mask is None else _CAUSAL_FROM_THE_END,
        inner_precise=0,  # float16 at high precision; bfloat16 knows no other
        block_size=stored.shape[2],
        softmax_lse_flag=False,
    )
    return y


def _ragged(call: Call, sizes: Mapping[str, int]) -> Run:
    _check_sizes(call, sizes, _RAGGED_BLOCKS, _RAGGED_SEQUENCES)
    head_dim, scale, mask = width_of(call, 1), call.number("scale"), causal_mask()

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        q, stored, slots = given(inputs, 0, 1, 4)
        queries = q.contiguous().view(len(q), -1, head_dim)  # the operator takes no strides
        ends, held = list(lengths.query_ends), list(lengths.kv_lengths)
        return [attend(queries, stored, slots, ends, held, scale=scale, layout="TND", mask=mask).reshape(q.shape)]

    return run


def _batched(call: Call, sizes: Mapping[str, int]) -> Run:
    _check_sizes(call, sizes, _BATCHED_BLOCKS, _BATCHED_SEQUENCES)
    head_dim, scale, mask = width_of(call, 1), call.number("scale"), causal_mask()

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        q, stored, slots = given(inputs, 0, 1, 4)
        parts = []
        for sequences, tokens, count in equal_runs(lengths):
            held = list(lengths.kv_lengths[sequences])
            queries = q[tokens].contiguous().view(len(held), count, -1, head_dim)
            seen = None if count == 1 else mask  # a single query sees all that is stored
            y = attend(
                queries, stored, slots[sequences], [count] * len(held), held, scale=scale, layout="BSND", mask=seen
            )
            parts.append(y.reshape(-1, q.shape[1]))
        return [parts[0] if len(parts) == 1 else torch.cat(parts)]

    return run


implement_on_npu("attention", "ragged", _ragged, _refuse_ragged)
implement_on_npu("attention", "batched", _batched, _refuse_batched)
