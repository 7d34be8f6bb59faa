"""The matrix product in PyTorch: accumulated by the device's library, the result in the call's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import linear

from trivet.operators.contract import Call
from trivet.operators.torch.call import DTYPES, Run, as_multiplied, given, implement_in_torch, widened
from trivet.operators.torch.lengths import StepLengths


def _linear(call: Call, sizes: Mapping[str, int]) -> Run:
    assert call.outputs[0].dtype is not None and call.inputs[1] is not None
    dtype, stored = DTYPES[call.outputs[0].dtype], call.inputs[1].dtype

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, weight = given(inputs, 0, 1)
        x, weight = as_multiplied(x, stored), widened(weight, stored)
        common = torch.promote_types(x.dtype, weight.dtype)
        y = linear(x.to(common), weight.to(common)).to(dtype)
        bias = inputs[2]
        return [y if bias is None else (y.float() + bias).to(dtype)]

    return run


implement_in_torch("linear", _linear)
