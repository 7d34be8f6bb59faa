"""Attention over the blocks of the cache: npu_fused_infer_attention_score, paged, a slot being one of its blocks.

Two variants, because its ragged layout (TND) takes heads of 128 or 192 only: `ragged` is one call for the step, and
`batched` (BSND) is one call for each run of neighbours with equally many new tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
import torch_npu

from trivet.base.errors import GraphError
from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.capture import Again, Workspaces
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


@dataclass(frozen=True)
class _Fused:
    """One call of the operator: all but the lengths, which the step says."""

    q: torch.Tensor  # TND: [tokens, heads, head_dim], BSND: [sequences, new tokens, heads, head_dim]
    stored: torch.Tensor  # [2, num_slots, slot_tokens, kv_heads, head_dim]
    slots: torch.Tensor  # int32 [sequences, max slots]
    scale: float
    layout: Literal["TND", "BSND"]
    mask: torch.Tensor | None  # causal from the last position backwards with it, over all that is stored without

    def arguments(self, query_lengths: list[int], kv_lengths: list[int]) -> dict[str, object]:
        """`query_lengths` are ends in TND, counted through the batch; `kv_lengths` of each sequence in either layout,
        because the cache is paged."""
        keys, values = self.stored.flatten(start_dim=3)
        return {
            "query": self.q,
            "key": keys,
            "value": values,
            "atten_mask": self.mask,
            "actual_seq_lengths": query_lengths,
            "actual_seq_lengths_kv": kv_lengths,
            "block_table": self.slots,
            "num_heads": self.q.shape[-2],
            "scale": self.scale,  # the default is 1.0
            "input_layout": self.layout,
            "num_key_value_heads": self.stored.shape[3],
            "sparse_mode": _NO_MASK if self.mask is None else _CAUSAL_FROM_THE_END,
            "inner_precise": 0,  # float16 at high precision; bfloat16 knows no other
            "block_size": self.stored.shape[2],
            "softmax_lse_flag": False,
        }

    def attend(self, query_lengths: list[int], kv_lengths: list[int]) -> torch.Tensor:
        """Softmax attention, shaped as q."""
        y: torch.Tensor
        y, _ = torch_npu.npu_fused_infer_attention_score(**self.arguments(query_lengths, kv_lengths))
        return y

    def workspace(self, query_lengths: list[int], kv_lengths: list[int]) -> torch.Tensor:
        """What the call needs beside its outputs at most, whatever the lengths."""
        space: torch.Tensor = torch_npu._npu_fused_infer_attention_score_get_max_workspace(
            **self.arguments(query_lengths, kv_lengths)
        )
        return space

    def attend_into(
        self, y: torch.Tensor, unused: torch.Tensor, workspace: torch.Tensor, queries: list[int], held: list[int]
    ) -> None:
        """`attend` in memory that is there; `unused`, empty, stands for the sums that are not asked for."""
        torch_npu.npu_fused_infer_attention_score.out(
            **self.arguments(queries, held), workspace=workspace, out=[y, unused]
        )


class _Attention:
    """Both variants: a step as one call in TND, as one for each run of equally long sequences in BSND."""

    def __init__(self, call: Call, layout: Literal["TND", "BSND"]) -> None:
        self._head_dim, self._scale = width_of(call, 1), call.number("scale")
        self._layout: Literal["TND", "BSND"] = layout
        self._mask = causal_mask()

    def __call__(self, inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        q, stored, slots = given(inputs, 0, 1, 4)
        held = list(lengths.kv_lengths)
        if self._layout == "TND":
            return [self._ragged(q, stored, slots).attend(list(lengths.query_ends), held).reshape(q.shape)]
        parts = []
        for sequences, tokens, count in equal_runs(lengths):
            fused = self._batched(q[tokens], stored, slots[sequences], count)
            y = fused.attend([count] * len(fused.q), held[sequences])
            parts.append(y.reshape(-1, q.shape[1]))
        return [parts[0] if len(parts) == 1 else torch.cat(parts)]

    def fixed(
        self, inputs: Sequence[torch.Tensor | None], lengths: StepLengths, workspaces: Workspaces
    ) -> tuple[list[torch.Tensor], Again]:
        """One new token for each sequence, in either layout."""
        q, stored, slots = given(inputs, 0, 1, 4)
        fused = self._ragged(q, stored, slots) if self._layout == "TND" else self._batched(q, stored, slots, 1)
        queries = list(lengths.query_ends) if self._layout == "TND" else [1] * len(q)
        shapes = (self._layout, tuple(fused.q.shape), tuple(stored.shape))
        if shapes not in workspaces:
            workspaces[shapes] = fused.workspace(queries, list(lengths.kv_lengths))
        workspace, y, unused = workspaces[shapes], torch.empty_like(fused.q), fused.q.new_empty(0, dtype=torch.float32)

        def again(lengths: StepLengths) -> None:
            fused.attend_into(y, unused, workspace, queries, list(lengths.kv_lengths))

        return [y.view(q.shape)], again

    def _ragged(self, q: torch.Tensor, stored: torch.Tensor, slots: torch.Tensor) -> _Fused:
        queries = q.contiguous().view(len(q), -1, self._head_dim)  # the operator takes no strides
        return _Fused(queries, stored, slots, self._scale, "TND", self._mask)

    def _batched(self, q: torch.Tensor, stored: torch.Tensor, slots: torch.Tensor, count: int) -> _Fused:
        queries = q.contiguous().view(len(slots), count, -1, self._head_dim)
        seen = None if count == 1 else self._mask  # a single query sees all that is stored
        return _Fused(queries, stored, slots, self._scale, "BSND", seen)


def _ragged(call: Call, sizes: Mapping[str, int]) -> Run:
    _check_sizes(call, sizes, _RAGGED_BLOCKS, _RAGGED_SEQUENCES)
    return _Attention(call, "TND")


def _batched(call: Call, sizes: Mapping[str, int]) -> Run:
    _check_sizes(call, sizes, _BATCHED_BLOCKS, _BATCHED_SEQUENCES)
    return _Attention(call, "BSND")


implement_on_npu("attention", "ragged", _ragged, _refuse_ragged)
implement_on_npu("attention", "batched", _batched, _refuse_batched)
