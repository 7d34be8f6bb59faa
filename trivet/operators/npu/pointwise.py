"""The gated activation by npu_swiglu, and the addition without a detour through float32: it rounds once either way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_npu

from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.refuse import refuse_formats
from trivet.operators.torch.call import Run, given
from trivet.operators.torch.lengths import StepLengths


def halves_of_one(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
    """[tokens, gate | up] without a copy, where the two lie side by side as parts of one product; None elsewhere."""
    tokens, width = gate.shape
    is_one = (
        gate.stride() == up.stride() == (2 * width, 1)
        and gate.storage_offset() + width == up.storage_offset()
        and gate.untyped_storage()._cdata == up.untyped_storage()._cdata
    )
    return gate.as_strided((tokens, 2 * width), (2 * width, 1)) if is_one else None


def _refuse_add(call: Call) -> str | None:
    return refuse_formats(call, ("a", "b", "y"))


def _add(call: Call, sizes: Mapping[str, int]) -> Run:
    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        a, b = given(inputs, 0, 1)
        return [a + b]

    return run


def _refuse_silu_mul(call: Call) -> str | None:
    return refuse_formats(call, ("gate", "up", "y"))


def _silu_mul(call: Call, sizes: Mapping[str, int]) -> Run:
    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        gate, up = given(inputs, 0, 1)
        merged = halves_of_one(gate, up)
        if merged is None:  # two operators move fewer bytes than a concatenation and one
            return [torch.nn.functional.silu(gate) * up]
        return [torch_npu.npu_swiglu(input=merged, dim=-1)]

    return run


implement_on_npu("add", "one addition", _add, _refuse_add)
implement_on_npu("silu_mul", "npu_swiglu", _silu_mul, _refuse_silu_mul)
