"""Writing keys and values into the blocks of the cache over npu_scatter_pa_kv_cache, alone or behind the rotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_npu

from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.refuse import refuse_formats
from trivet.operators.npu.rope import refuse_one, refuse_pair, rotate_one, rotate_pair
from trivet.operators.torch.call import Run, given
from trivet.operators.torch.lengths import StepLengths

_Q, _K, _ANGLES = 0, 1, 3  # inputs of rope_kv_store


def store(k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor, rows: torch.Tensor) -> None:
    """k, v: [tokens, kv_heads · head_dim] into `rows` of cache: [2, num_slots, slot_tokens, kv_heads, head_dim].

    No two tokens may go to one row: the operator leaves open which of them stays.
    """
    heads = cache.shape[3:]
    # The operator takes no strides: a v that is a part of a merged product is copied here, a rotated k is not.
    torch_npu.npu_scatter_pa_kv_cache(
        key=k.to(cache.dtype).contiguous().view(-1, *heads),
        value=v.to(cache.dtype).contiguous().view(-1, *heads),
        key_cache=cache[0],
        value_cache=cache[1],
        slot_mapping=rows,
        compress_lens=None,
        compress_seq_offsets=None,
        seq_lens=None,
        cache_mode="Norm",  # the default, PA_NZ, would take our blocks for another layout
    )


def _refuse_kv_store(call: Call) -> str | None:
    return refuse_formats(call, ("k", "v")) or refuse_formats(call, ("cache",))


def _kv_store(call: Call, sizes: Mapping[str, int]) -> Run:
    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        k, v, cache = given(inputs, 0, 1, 2)
        store(k, v, cache, lengths.cache_rows)
        return [cache]

    return run


def _refuse_rope_kv_store(call: Call) -> str | None:
    return refuse_formats(call, ("q", "k", "v", "q'")) or refuse_formats(call, ("cache",))


def _refuse_by_mrope(call: Call) -> str | None:
    return refuse_pair(call, _ANGLES) or _refuse_rope_kv_store(call)


def _by_mrope(call: Call, sizes: Mapping[str, int]) -> Run:
    head_dim = call.integer("head_dim")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        q, k, v, angles, cache = given(inputs, 0, 1, 2, 3, 4)
        queries, keys = rotate_pair(q, k, angles, head_dim)
        store(keys, v, cache, lengths.cache_rows)
        return [queries, cache]

    return run


def _refuse_by_rotary_mul(call: Call) -> str | None:
    return refuse_one(call, _Q, _ANGLES) or refuse_one(call, _K, _ANGLES) or _refuse_rope_kv_store(call)


def _by_rotary_mul(call: Call, sizes: Mapping[str, int]) -> Run:
    head_dim = call.integer("head_dim")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        q, k, v, angles, cache = given(inputs, 0, 1, 2, 3, 4)
        store(rotate_one(k, angles, head_dim), v, cache, lengths.cache_rows)
        return [rotate_one(q, angles, head_dim), cache]

    return run


implement_on_npu("kv_store", "npu_scatter_pa_kv_cache", _kv_store, _refuse_kv_store)
implement_on_npu("rope_kv_store", "npu_mrope", _by_mrope, _refuse_by_mrope)
implement_on_npu("rope_kv_store", "npu_rotary_mul", _by_rotary_mul, _refuse_by_rotary_mul)
