"""Root-mean-square normalisation over npu_rms_norm and npu_add_rms_norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_npu

from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.linear import prepare_weight
from trivet.operators.npu.refuse import formats, refuse_formats, width_of
from trivet.operators.torch.call import Run, given
from trivet.operators.torch.lengths import StepLengths


def _refuse_rms_norm(call: Call) -> str | None:
    dtypes, width, size = formats(call), width_of(call, 0), width_of(call, 1)
    if width % size:
        return f"x is {width} wide, not a multiple of the weight's {size}"
    # A2 and A3 also take a float32 weight beside a half precision x; no other mixture.
    if dtypes["weight"] not in ("float32", dtypes["x"]):
        return f"weight is {dtypes['weight']}, npu_rms_norm takes float32 or the format of x, {dtypes['x']}"
    return refuse_formats(call, ("x", "y"))


def _rms_norm(call: Call, sizes: Mapping[str, int]) -> Run:
    size, epsilon = width_of(call, 1), call.number("epsilon")
    groups = width_of(call, 0) // size

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, weight = given(inputs, 0, 1)
        y, _ = torch_npu.npu_rms_norm(input=x.view(len(x), groups, size), gamma=weight, epsilon=epsilon)
        return [y.reshape(x.shape)]

    return run


def _refuse_add_rms_norm(call: Call) -> str | None:
    return refuse_formats(call, ("a", "b", "sum", "y"))


def _add_rms_norm(call: Call, sizes: Mapping[str, int]) -> Run:
    epsilon = call.number("epsilon")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        a, b, weight = given(inputs, 0, 1, 2)
        # The operator takes one format; a weight that went through prepare_weight has it, and nothing is copied.
        y, _, total = torch_npu.npu_add_rms_norm(x1=a, x2=b, gamma=weight.to(a.dtype), epsilon=epsilon)
        return [total, y]

    return run


implement_on_npu("rms_norm", "npu_rms_norm", _rms_norm, _refuse_rms_norm)
implement_on_npu("add_rms_norm", "npu_add_rms_norm", _add_rms_norm, _refuse_add_rms_norm, prepare_weight)
