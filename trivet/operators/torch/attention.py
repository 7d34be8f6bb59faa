"""Keys and values into blocks, attention out of them, in PyTorch: sequence by sequence, in float32.

A cache in int8 has rows of integers and scales (`trivet.base.dtypes`), as its last axis, and is uint8 to PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch

from trivet.operators.contract import Call
from trivet.operators.torch.call import Run, given, implement_in_torch, narrowed, widened
from trivet.operators.torch.lengths import StepLengths
from trivet.operators.torch.rope import rotate


def store(k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor, rows: torch.Tensor) -> None:
    """Write keys and values [tokens, kv_heads · head_dim] into rows of cache [2, slots, slot_tokens, …], in place."""
    for half, new in enumerate((k, v)):
        by_head = new.unflatten(-1, (cache.shape[3], -1))
        stored = narrowed(by_head) if cache.dtype == torch.uint8 else by_head.to(cache.dtype)
        cache[half].flatten(0, 1)[rows] = stored


def _kv_store(call: Call, sizes: Mapping[str, int]) -> Run:
    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        k, v, cache = given(inputs, 0, 1, 2)
        store(k, v, cache, lengths.cache_rows)
        return [cache]

    return run


def _rope_kv_store(call: Call, sizes: Mapping[str, int]) -> Run:
    head_dim = call.integer("head_dim")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        q, k, v, angles, cache = given(inputs, 0, 1, 2, 3, 4)
        store(rotate(k, angles, head_dim), v, cache, lengths.cache_rows)
        return [rotate(q, angles, head_dim), cache]

    return run


def _attention(call: Call, sizes: Mapping[str, int]) -> Run:
    scale = call.number("scale")
    kept = call.inputs[1]
    assert kept is not None
    dtype = kept.dtype

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        q, cache, positions, slots = given(inputs, 0, 1, 2, 4)
        slot_tokens, kv_heads = cache.shape[2:4]
        out = torch.empty_like(q)
        for index, (start, end) in enumerate(_spans(lengths)):
            length = lengths.kv_lengths[index]
            held = slots[index, : -(-length // slot_tokens)].long()
            keys, values = (widened(cache[half, held].flatten(0, 1)[:length], dtype).float() for half in (0, 1))
            queries = q[start:end].float().view(end - start, kv_heads, -1, keys.shape[-1])
            scores = torch.einsum("thgd,chd->hgtc", queries, keys) * scale
            later = torch.arange(length, device=q.device)[None] > positions[start:end, None]
            weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
            out[start:end] = torch.einsum("hgtc,chd->thgd", weights, values).reshape(end - start, -1).to(q.dtype)
        return [out]

    return run


def _spans(lengths: StepLengths) -> Iterator[tuple[int, int]]:
    """First and end token of each sequence of the step."""
    return pairwise((0, *lengths.query_ends))


implement_in_torch("kv_store", _kv_store)
implement_in_torch("rope_kv_store", _rope_kv_store)
implement_in_torch("attention", _attention)
