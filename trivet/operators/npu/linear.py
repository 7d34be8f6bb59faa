"""A layer's matrix product: its bias, its format, and the fractal layout that the cube unit reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_npu

from trivet.base.errors import ResourceError
from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.refuse import HALVES, formats, refuse_formats
from trivet.operators.torch.call import DTYPES, Run, given
from trivet.operators.torch.lengths import StepLengths

_FRACTAL_NZ = 29  # aclFormat of the layout the cube unit reads


def prepare_weight(call: Call, argument: str, weight: torch.Tensor) -> torch.Tensor:
    """The weight that `call` takes as `argument`, in the format and layout its operator wants. Once, at load.

    The matrix of a linear in half precision goes to the fractal layout, at the price of a copy; no other operator may
    read the result, and none a part of it. The bias of a linear and the weight of add_rms_norm are rounded to the
    format of the activations they meet: exact where the checkpoint had it.
    """
    dtypes = formats(call)
    if (call.operator, argument) in (("add_rms_norm", "weight"), ("linear", "bias")):
        meets = dtypes["a" if call.operator == "add_rms_norm" else "x"]
        assert meets is not None
        return weight.to(DTYPES[meets])
    if (call.operator, argument) == ("linear", "weight") and dtypes["weight"] in HALVES:
        return to_fractal(weight)
    return weight


def to_fractal(matrix: torch.Tensor) -> torch.Tensor:
    """`matrix` in the fractal layout. Raises ResourceError where torch_npu leaves it in rows, which it does quietly."""
    torch.npu.config.allow_internal_format = True  # off by default; without it the cast gives rows, and a warning
    cast: torch.Tensor = torch_npu.npu_format_cast(
        # A view, such as of the memory that all weights came in, would be left in rows: a tensor of its own.
        input=matrix.clone(),
        acl_format=_FRACTAL_NZ,
        customize_dtype=None,
        input_dtype=None,
    )
    found = torch_npu.get_npu_format(cast)
    if found != _FRACTAL_NZ:
        raise ResourceError(
            f"linear: a weight {list(matrix.shape)} is in format {found} after the cast, wanted {_FRACTAL_NZ} (NZ)",
            "let nothing in this process set torch.npu.config.allow_internal_format to False",
        )
    return cast


def _refuse(call: Call) -> str | None:
    if formats(call)["weight"] == "int8":
        return "weight is int8, its scales in its rows: npu_weight_quant_batchmatmul takes integers and scales apart"
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
