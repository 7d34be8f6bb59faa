"""Operators on single elements in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import embedding, silu

from trivet.operators.contract import Call
from trivet.operators.torch.call import DTYPES, Run, given, implement_in_torch, widened
from trivet.operators.torch.lengths import StepLengths


def _dtype(call: Call) -> torch.dtype:
    assert call.outputs[0].dtype is not None
    return DTYPES[call.outputs[0].dtype]


def _embed(call: Call, sizes: Mapping[str, int]) -> Run:
    assert call.inputs[1] is not None
    dtype, stored = _dtype(call), call.inputs[1].dtype

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        tokens, table = given(inputs, 0, 1)
        rows = table[tokens] if stored == "int8" else embedding(tokens, table)
        return [widened(rows, stored).to(dtype)]

    return run


def _add(call: Call, sizes: Mapping[str, int]) -> Run:
    dtype = _dtype(call)

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        a, b = given(inputs, 0, 1)
        return [(a.float() + b.float()).to(dtype)]

    return run


def _silu_mul(call: Call, sizes: Mapping[str, int]) -> Run:
    dtype = _dtype(call)

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        gate, up = given(inputs, 0, 1)
        return [(silu(gate.float()) * up.float()).to(dtype)]

    return run


def _take_rows(call: Call, sizes: Mapping[str, int]) -> Run:
    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, rows = given(inputs, 0, 1)
        return [x.index_select(0, rows)]

    return run


def _split(call: Call, sizes: Mapping[str, int]) -> Run:
    widths = call.attributes["widths"]
    assert isinstance(widths, tuple)

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        (x,) = given(inputs, 0)
        return list(torch.split(x, list(widths), dim=1))

    return run


def _cast(call: Call, sizes: Mapping[str, int]) -> Run:
    dtype = _dtype(call)

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        (x,) = given(inputs, 0)
        return [x.to(dtype)]

    return run


for _name, _lower in (
    ("embed", _embed),
    ("add", _add),
    ("silu_mul", _silu_mul),
    ("take_rows", _take_rows),
    ("split", _split),
    ("cast", _cast),
):
    implement_in_torch(_name, _lower)
