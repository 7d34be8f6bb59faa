"""Normalisation in PyTorch: statistics in float32, the result rounded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trivet.operators.contract import Call
from trivet.operators.torch.call import DTYPES, Run, given, implement_in_torch
from trivet.operators.torch.lengths import StepLengths


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    """x [tokens, groups · size] with each group normalised, in `dtype`."""
    groups = x.float().unflatten(-1, (-1, weight.shape[0]))
    scale = torch.rsqrt(groups.square().mean(dim=-1, keepdim=True) + epsilon)
    return (groups * scale * weight).flatten(-2).to(dtype)


def _rms_norm(call: Call, sizes: Mapping[str, int]) -> Run:
    epsilon, dtype = call.number("epsilon"), _dtype(call, 0)

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, weight = given(inputs, 0, 1)
        return [rms_norm(x, weight, epsilon, dtype)]

    return run


def _add_rms_norm(call: Call, sizes: Mapping[str, int]) -> Run:
    epsilon, sum_dtype, dtype = call.number("epsilon"), _dtype(call, 0), _dtype(call, 1)

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        a, b, weight = given(inputs, 0, 1, 2)
        total = a.float() + b.float()
        return [total.to(sum_dtype), rms_norm(total, weight, epsilon, dtype)]

    return run


def _add_rms_norm_cast(call: Call, sizes: Mapping[str, int]) -> Run:
    epsilon, sum_dtype, dtype = call.number("epsilon"), _dtype(call, 0), _dtype(call, 1)

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        a, b, weight = given(inputs, 0, 1, 2)
        total = a.float() + b.float()
        wide = rms_norm(total, weight, epsilon, torch.float32)
        return [total.to(sum_dtype), wide.to(dtype), wide]

    return run


def _dtype(call: Call, output: int) -> torch.dtype:
    dtype = call.outputs[output].dtype
    assert dtype is not None
    return DTYPES[dtype]


implement_in_torch("rms_norm", _rms_norm)
implement_in_torch("add_rms_norm", _add_rms_norm)
implement_in_torch("add_rms_norm_cast", _add_rms_norm_cast)
