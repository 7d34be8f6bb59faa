"""A layer's matrix product: its bias, its format, and the fractal layout that the cube unit reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_npu

from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.refuse import HALVES, formats, refuse_formats
from trivet.operators.torch.call import DTYPES, Run, given
from trivet.operators.torch.lengths import StepLengths

_FRACTAL_NZ = 29  # the layout the cube unit reads; a view or a slice of a tensor in it is illegal


def prepare_weight(call: Call, argument: str, weight: torch.Tensor, is_fractal: bool = False) -> torch.Tensor:
    """The weight that `call` takes as `argument`, in the format and layout its operator wants. Once, at load.

    The matrix of a linear goes to the fractal layout when asked: half precision only, at the price of a copy, and no
    other operator may read the result, so a table tied to the head needs its own. The process has to have set
    `torch.npu.config.allow_internal_format` before, or torch_npu keeps the rows and warns. The bias of a linear and the
    weight of add_rms_norm are rounded to the format of the activations they meet: exact where the checkpoint had it.
    """
    dtypes = formats(call)
    if (call.operator, argument) in (("add_rms_norm", "weight"), ("linear", "bias")):
        meets = dtypes["a" if call.operator == "add_rms_norm" else "x"]
        assert meets is not None
        return weight.to(DTYPES[meets])
    if is_fractal and call.operator == "linear" and dtypes["weight"] in HALVES:
        cast: torch.Tensor = torch_npu.npu_format_cast(
            input=weight, acl_format=_FRACTAL_NZ, customize_dtype=None, input_dtype=None
        )
        return cast
    return weight


def _refuse(call: Call) -> str | None:
    return refuse_formats(call, ("x", "weight"))


def _linear(call: Call, sizes: Mapping[str, int]) -> Run:
    assert call.outputs[0].dtype is not None
    dtype = DTYPES[call.outputs[0].dtype]

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, weight = given(inputs, 0, 1)
        bias = inputs[2]
        rounded = None if bias is None else bias.to(x.dtype)  # no copy once prepare_weight has done it
        return [torch.nn.functional.linear(x, weight, rounded).to(dtype)]

    return run


implement_on_npu("linear", "one format", _linear, _refuse, prepare_weight)
