"""Tokens to their experts and back in PyTorch. The grouped product waits for the device: it has to know how many rows
each expert got before it can take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch.nn.functional import linear

from trivet.operators.contract import Call
from trivet.operators.torch.call import DTYPES, Run, as_multiplied, given, implement_in_torch
from trivet.operators.torch.lengths import StepLengths


def _permute(call: Call, sizes: Mapping[str, int]) -> Run:
    num_experts = call.integer("num_experts")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, experts = given(inputs, 0, 1)
        each = experts.flatten()
        order = each.sort(stable=True).indices
        numbers = torch.arange(len(order), dtype=torch.int32, device=x.device)
        places = torch.empty_like(numbers).scatter_(0, order, numbers)
        y = x.index_select(0, order // experts.shape[1]).unflatten(0, experts.shape)
        is_up_to = each[:, None] <= torch.arange(num_experts, dtype=each.dtype, device=x.device)
        return [y, places.view_as(experts), is_up_to.sum(dim=0).int()]

    return run


def _grouped_linear(call: Call, sizes: Mapping[str, int]) -> Run:
    assert call.outputs[0].dtype is not None
    assert call.inputs[1] is not None
    dtype, stored = DTYPES[call.outputs[0].dtype], call.inputs[1].dtype

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, weight, ends = given(inputs, 0, 1, 2)
        common = torch.promote_types(x.dtype, weight.dtype)
        rows = as_multiplied(x, stored).flatten(0, 1).to(common)
        y = torch.empty(len(rows), weight.shape[1], dtype=dtype, device=x.device)
        for expert, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
            if start < end:
                y[start:end] = linear(rows[start:end], weight[expert].to(common))
        return [y.unflatten(0, x.shape[:2])]

    return run


def _unpermute(call: Call, sizes: Mapping[str, int]) -> Run:
    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, places, weights = given(inputs, 0, 1, 2)
        rows = x.flatten(0, 1).index_select(0, places.flatten()).view_as(x)
        return [(rows.float() * weights[:, :, None]).sum(dim=1).to(x.dtype)]

    return run


implement_in_torch("moe_permute", _permute)
implement_in_torch("grouped_linear", _grouped_linear)
implement_in_torch("moe_unpermute", _unpermute)
